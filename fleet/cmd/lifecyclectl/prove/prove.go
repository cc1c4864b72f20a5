// Package prove puts a workload (a Deployment, a StatefulSet or a DaemonSet) to the test on
// its own cluster: a Job sends requests through its Service while its pods are rolled, scaled
// and deleted, and every request is accounted for. It asks the cluster through kubectl.
//
// Begin at [Run]: objects.go has the workload, its Service and the Job that sends the
// requests, watch.go what the cluster and the load do meanwhile, and judge.go what became of
// each request. report.go writes it down.
package prove

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// Options say what to prove, and how: the argument and the flags of the command.
type Options struct {
	Target                         string
	Namespace, Context, Kubeconfig string
	Service, Port, Image           string
	Get, Post, Stream              string
	Timeout                        time.Duration // defaults to 20 minutes

	// Ask asks the user whether to go on with a workload that does not have the
	// label. An error ends the proof.
	Ask func(what string) error
	// Step reports what begins or has happened. Now reports, often, what is under way.
	Step, Now func(text string)

	callIn time.Duration // for tests: the maximum time of a call; defaults to callIn
}

// The times of a proof. The load before and after the steps shows what the service loses
// without them.
const (
	baseline  = 10 * time.Second              // of load before anything is touched
	between   = 2 * time.Second               // one step and the next
	afterward = 2*load.AnswerIn + time.Second // of load after the last step, whose requests then have their outcome: they dial and wait
	maxWait   = 60 * time.Second              // for a load that does not answer meanwhile
)

// list is any list of objects.
type list[T any] struct {
	Items []T `json:"items"`
}

// proof is one run.
type proof struct {
	opts Options
	k    *kubectl
	d    *workload
	svc  *service
	port corev1.ServicePort
	at   int // index of the serving container
	job  string

	pods   *timeline
	load   *account
	steps  []Step
	scaled bool // the proof has changed the number of replicas

	began, ended time.Time // of the load
}

// Run proves the workload and returns the report. It leaves nothing behind: it
// deletes the Job and puts the replicas back, also when ctx ends or a step fails.
// Then the report is nil and the error says why; it is a [*cli.Failure], or
// context.Canceled after ctx has ended.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Minute
	}
	kind, name, _ := strings.Cut(o.Target, "/")
	resource := resources[strings.TrimSuffix(kind, ".apps")]
	if resource == "" || name == "" {
		return nil, cli.Fail(cli.ExitUsage, "%q is not deployment/NAME, statefulset/NAME or daemonset/NAME: prove can roll and heal only these", o.Target)
	}
	if o.Image == "" {
		return nil, cli.Fail(cli.ExitUsage, "no image is given: the load runs in the cluster, from an image whose entry point is this version of lifecyclectl").
			Hint("build one from this program, push it where the cluster pulls, and name it with --image")
	}
	p := &proof{opts: o, k: &kubectl{namespace: o.Namespace, limit: cmp.Or(o.callIn, callIn)}, job: jobName()}
	if o.Context != "" {
		p.k.flags = append(p.k.flags, "--context", o.Context)
	}
	if o.Kubeconfig != "" {
		p.k.flags = append(p.k.flags, "--kubeconfig", o.Kubeconfig)
	}
	if err := p.findNamespace(ctx); err != nil {
		return nil, err
	}
	whole, cancel := context.WithTimeoutCause(ctx, o.Timeout, cli.Fail(cli.ExitFindings, "%s: the proof was not done within %v", o.Target, o.Timeout).
		Hint("--timeout gives it longer; kubectl -n %s describe %s says what it waits for", p.k.namespace, o.Target))
	defer cancel()
	if err := p.look(whole, resource, name); err != nil {
		return nil, causeOr(whole, err)
	}
	if err := p.consent(); err != nil {
		return nil, err
	}
	began := time.Now()
	report, err = p.run(whole)
	if err != nil {
		return nil, causeOr(whole, err)
	}
	report.Took = seconds(time.Since(began))
	return report, nil
}

// findNamespace sets the namespace of kubectl's context when the user gave none.
func (p *proof) findNamespace(ctx context.Context) error {
	if p.k.namespace != "" {
		return nil
	}
	out, err := p.k.run(ctx, nil, "config", "view", "--minify", "--output", "jsonpath={..namespace}")
	if err != nil {
		return err
	}
	p.k.namespace = cmp.Or(strings.TrimSpace(string(out)), "default")
	return nil
}

// look reads the cluster, and refuses what cannot be proven.
func (p *proof) look(ctx context.Context, resource, name string) error {
	d, err := p.workload(ctx, resource, name)
	if err != nil {
		return err
	}
	p.d = d
	var services list[service]
	if err := p.k.get(ctx, &services, "services"); err != nil {
		return err
	}
	if p.svc, err = choose(services.Items, p.opts.Service, d); err != nil {
		return err
	}
	if p.port, err = p.svc.port(p.opts.Port); err != nil {
		return err
	}
	p.at = d.serving(p.port)
	return d.usable(p.at)
}

func (p *proof) workload(ctx context.Context, resource, name string) (*workload, error) {
	d := &workload{resource: resource}
	return d, p.k.get(ctx, d, resource, name)
}

func (p *proof) consent() error {
	if p.d.Labels[Label] == "allowed" {
		return nil
	}
	what := fmt.Sprintf("%s in namespace %s does not have the label %s=allowed. This restarts, scales and deletes its pods, and sends GET %s",
		p.d, p.k.namespace, Label, p.opts.Get)
	if p.opts.Post != "" {
		what += " and POST " + p.opts.Post
	}
	return p.opts.Ask(what + " to service/" + p.svc.Name + ".")
}

// run starts the load, takes the steps and judges.
func (p *proof) run(ctx context.Context) (*Report, error) {
	defer p.clean(ctx)
	plan := load.Plan{
		Addr:   net.JoinHostPort(p.svc.Spec.ClusterIP, fmt.Sprint(p.port.Port)),
		TLS:    speaksTLS(p.port),
		Get:    p.opts.Get,
		Post:   p.opts.Post,
		Stream: p.opts.Stream,
	}
	job, err := jobObject(p.job, p.opts.Image, p.d.Spec.Template.Spec.ImagePullSecrets, plan, p.opts.Timeout+time.Minute)
	if err != nil {
		return nil, err
	}
	p.opts.Step(fmt.Sprintf("%s in namespace %s: %d replicas, service/%s port %d; the load is job/%s",
		p.d, p.k.namespace, p.d.replicas(), p.svc.Name, p.port.Port, p.job))
	if err := p.k.create(ctx, job); err != nil {
		return nil, err
	}
	pod, err := p.awaitJob(ctx)
	if err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	p.pods = &timeline{container: p.d.Spec.Template.Spec.Containers[p.at].Name}
	p.load = newAccount()
	p.began = time.Now()
	watches.Go(func() { p.pods.follow(watching, p.k, p.d.selector()) })
	watches.Go(func() { p.load.follow(watching, p.k, pod) })
	if err := p.before(ctx); err != nil {
		return nil, err
	}
	if err := p.takeSteps(ctx); err != nil {
		return nil, err
	}
	if err := p.rest(ctx, afterward); err != nil {
		return nil, err
	}
	p.ended = time.Now()
	p.opts.Now("waiting for the load's last report")
	if err := p.load.reached(ctx, p.ended); err != nil {
		return nil, err
	}
	cancel()
	watches.Wait()
	return p.report(), nil
}

// before runs the load on a cluster that is left alone: a service that does not
// answer now has nothing to prove.
func (p *proof) before(ctx context.Context) error {
	hello, err := p.load.hello(ctx)
	if err != nil {
		return err
	}
	if hello.Error != "" {
		return cli.Fail(cli.ExitFindings, "service/%s port %d does not answer, before anything was touched: %s", p.svc.Name, p.port.Port, hello.Error).
			Hint("--get, --post and --stream say which paths to ask for, --port which port; a NetworkPolicy may keep the load out")
	}
	for _, kind := range load.Kinds {
		if why, skipped := hello.Skipped[kind]; skipped {
			p.opts.Step(fmt.Sprintf("%s: left out: %s", kind, why))
		}
	}
	p.opts.Now("load without a change")
	if err := p.rest(ctx, baseline); err != nil {
		return err
	}
	if lost := p.load.losses(); len(lost) > 0 {
		return cli.Fail(cli.ExitFindings, "service/%s loses requests before anything was touched: %d so far, the first %s: %s",
			p.svc.Name, len(lost), lost[0].How, lost[0].Why)
	}
	return nil
}

// clean puts back what the proof has changed, and reports what it could not put back.
// It has a deadline of its own: ctx may have ended.
func (p *proof) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanIn)
	defer cancel()
	if p.scaled {
		p.opts.Now("putting the replicas back")
		if err := p.patch(ctx, object{"spec": object{"replicas": p.d.replicas()}}); err != nil {
			p.opts.Step(fmt.Sprintf("%s does not have its %d replicas (%v): kubectl -n %s scale %s --replicas=%d",
				p.d, p.d.replicas(), err, p.k.namespace, p.d, p.d.replicas()))
		}
	}
	p.opts.Now("deleting job/" + p.job)
	if _, err := p.k.run(ctx, nil, "delete", "job", p.job, "--ignore-not-found", "--wait=false", "--cascade=background"); err != nil {
		p.opts.Step(fmt.Sprintf("job/%s is still there (%v): kubectl -n %s delete job %s", p.job, err, p.k.namespace, p.job))
	}
}

// Step is one way to stop pods.
type Step struct {
	Name    string    `json:"name"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Stopped int       `json:"stopped"` // pods that were deleted meanwhile
	Lost    int       `json:"lost"`
	Skipped string    `json:"skipped,omitempty"`
}

// errChanged is why a step is left out.
var errChanged = errors.New("something else changes the number of pods, perhaps a HorizontalPodAutoscaler")

// longer is how much more time than its own grace a pod gets that shows whether the
// program ends at all.
const longer = 60 // seconds

func (p *proof) takeSteps(ctx context.Context) error {
	type action struct {
		name string
		do   func(context.Context) error
	}
	steps := []action{{"rolling restart", p.restart}, {"delete a pod", p.deletePod}}
	if !p.d.isDaemonSet() { // it has a pod on each of its nodes
		n := p.d.replicas()
		other := n - 1
		if n == 1 {
			other = 2
		}
		name := fmt.Sprintf("scale to %d and to %d", other, n)
		steps = slices.Insert(steps, 1, action{name, func(ctx context.Context) error {
			if err := p.scale(ctx, other); err != nil {
				return err
			}
			if !cli.Pause(ctx, between) {
				return context.Canceled
			}
			return p.scale(ctx, n)
		}})
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
		if within(s, l.At()) {
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

// patch merges a change into the workload.
func (p *proof) patch(ctx context.Context, change object) error {
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = p.k.run(ctx, nil, "patch", p.d.resource, p.d.Name, "--type=merge", "--patch", string(text))
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
	args := []string{"delete", "pod", pods[i].Name, "--wait=false"}
	if copies := p.pods.copies(); slices.ContainsFunc(copies, func(pod Pod) bool { return pod.wasKilled() }) {
		// How long would its stop take? Only a pod with more time can show it.
		grace := p.d.grace() + longer
		p.opts.Step(fmt.Sprintf("the kubelet killed pods after their grace of %d s: the next one has %d s", p.d.grace(), grace))
		args = append(args, fmt.Sprintf("--grace-period=%d", grace))
	}
	if _, err := p.k.run(ctx, nil, args...); err != nil {
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

// rolled waits until the workload has that many new pods, all of them available,
// and no pod that stops.
func (p *proof) rolled(ctx context.Context, want int) error {
	for {
		if over, err := p.isRolled(ctx, want); over || err != nil {
			return err
		}
		if err := p.rest(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (p *proof) isRolled(ctx context.Context, want int) (bool, error) {
	d, err := p.workload(ctx, p.d.resource, p.d.Name)
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
	if !d.hasRolled(want) {
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
		sent, lost := 0, 0
		for _, c := range p.load.counts() {
			sent, lost = sent+c.Sent, lost+c.Lost
		}
		p.opts.Now(fmt.Sprintf("%s, %d lost", number(sent, "request"), lost))
	}
	return nil
}
