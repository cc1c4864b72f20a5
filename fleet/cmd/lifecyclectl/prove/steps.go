package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// Step is one way to stop pods.
type Step struct {
	Name    string    `json:"name"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Stopped int       `json:"stopped"` // pods that were deleted meanwhile
	Lost    int       `json:"lost"`
	Skipped string    `json:"skipped,omitempty"`
}

// errChanged says that something else changes the replicas.
var errChanged = errors.New("something else changes spec.replicas, perhaps a HorizontalPodAutoscaler")

func (p *proof) takeSteps(ctx context.Context) error {
	n := p.d.replicas()
	other := n - 1
	if n == 1 {
		other = 2
	}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"rolling restart", p.restart},
		{fmt.Sprintf("scale to %d and to %d", other, n), func(ctx context.Context) error {
			if err := p.scale(ctx, other); err != nil {
				return err
			}
			if !cli.Pause(ctx, between) {
				return context.Canceled
			}
			return p.scale(ctx, n)
		}},
		{"delete a pod", p.deletePod},
	}
	for _, s := range steps {
		step := Step{Name: s.name, Began: time.Now()}
		p.opts.Now(s.name)
		err := s.do(ctx)
		if errors.Is(err, errChanged) {
			step.Skipped, err = err.Error(), nil
		}
		if err == nil {
			err = p.rest(ctx, between)
		}
		if err != nil {
			return err
		}
		step.Ended = time.Now()
		p.steps = append(p.steps, step)
		p.opts.Step(fmt.Sprintf("%s: %s so far", s.name, p.stepResult(&p.steps[len(p.steps)-1])))
	}
	return nil
}

// stepResult counts what the step has done so far.
func (p *proof) stepResult(s *Step) string {
	s.Stopped, s.Lost = 0, 0
	for _, pod := range p.pods.copies() {
		if within(s, pod.Deleted) {
			s.Stopped++
		}
	}
	for _, l := range p.load.losses() {
		if within(s, l.at()) {
			s.Lost++
		}
	}
	if s.Skipped != "" {
		return "left out: " + s.Skipped
	}
	return fmt.Sprintf("%s stopped in %v, %s lost", number(s.Stopped, "pod"), s.Ended.Sub(s.Began).Round(time.Second), number(s.Lost, "request"))
}

func within(s *Step, at time.Time) bool { return !at.Before(s.Began) && at.Before(s.Ended) }

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// patch merges a change into the Deployment.
func (p *proof) patch(ctx context.Context, change object) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = p.k.run(ctx, nil, "patch", "deployments.apps", p.d.Name, "--type=merge", "--patch", string(text))
	return err
}

// restart does what "kubectl rollout restart" does.
func (p *proof) restart(ctx context.Context) error {
	annotations := object{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339)}
	err := p.patch(ctx, object{"spec": object{"template": object{"metadata": object{"annotations": annotations}}}})
	if err != nil {
		return err
	}
	return p.rolled(ctx, p.d.replicas())
}

// scale changes the replicas.
func (p *proof) scale(ctx context.Context, replicas int) error {
	p.scaled = true
	if err := p.patch(ctx, object{"spec": object{"replicas": replicas}}); err != nil {
		return err
	}
	p.scaled = replicas != p.d.replicas()
	return p.rolled(ctx, replicas)
}

func (p *proof) deletePod(ctx context.Context) error {
	pods, err := p.listPods(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pods, func(o corev1.Pod) bool { return o.DeletionTimestamp == nil })
	if i < 0 {
		return cli.Fail(cli.ExitFindings, "%s has no pod that could be deleted", p.d)
	}
	if _, err := p.k.run(ctx, nil, "delete", "pod", pods[i].Name, "--wait=false"); err != nil {
		return err
	}
	if !cli.Pause(ctx, time.Second) { // until the controller has seen it
		return context.Canceled
	}
	return p.rolled(ctx, p.d.replicas())
}

func (p *proof) listPods(ctx context.Context) ([]corev1.Pod, error) {
	var pods list[corev1.Pod]
	err := p.k.get(ctx, &pods, "pods", "--selector", p.d.selector())
	return pods.Items, err
}

// rolled waits until the Deployment has that many new pods, all of them available,
// and no pod that stops.
func (p *proof) rolled(ctx context.Context, want int) error {
	answered := time.Now()
	for {
		over, err := p.isRolled(ctx, want)
		switch {
		case over:
			return nil
		case err == nil:
			answered = time.Now()
		case !unreachable(err) || time.Since(answered) > maxWait:
			return err
		}
		if err := p.rest(ctx, time.Second); err != nil {
			return err
		}
	}
}

func unreachable(err error) bool {
	var e *cli.Failure
	return errors.As(err, &e) && e.Status == cli.ExitUnreachable
}

func (p *proof) isRolled(ctx context.Context, want int) (bool, error) {
	d, err := p.deployment(ctx, p.d.Name)
	if err != nil {
		return false, err
	}
	if d.replicas() != want {
		return false, errChanged
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Reason == "ProgressDeadlineExceeded" {
			return false, cli.Fail(cli.ExitFindings, "%s does not get its pods ready: %s", p.d, c.Message).
				Hint("kubectl -n %s describe %s", p.k.namespace, p.d)
		}
	}
	s := d.Status
	isSeen := s.ObservedGeneration >= d.Generation
	if !isSeen || int(s.UpdatedReplicas) != want || int(s.Replicas) != want || int(s.AvailableReplicas) != want {
		return false, nil
	}
	pods, err := p.listPods(ctx)
	if err != nil {
		return false, err
	}
	stopping := slices.ContainsFunc(pods, func(o corev1.Pod) bool { return o.DeletionTimestamp != nil })
	return !stopping, nil
}

// rest waits, shows the totals, and returns an error when the load does not report.
func (p *proof) rest(ctx context.Context, d time.Duration) error {
	for until := time.Now().Add(d); time.Now().Before(until); {
		if !cli.Pause(ctx, min(time.Second, time.Until(until))) {
			return context.Canceled
		}
		if err := p.load.overdue(); err != nil {
			return err
		}
		sent, lost := p.load.totals()
		p.opts.Now(fmt.Sprintf("%s, %d lost", number(sent, "request"), lost))
	}
	return nil
}
