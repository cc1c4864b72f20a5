package prove

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
	"github.com/pleme-io/lifecycle-go/internal/cmdline"
)

// Label on a workload with the value "allowed" lets prove touch it without asking.
const Label = "lifecycle.pleme.io/prove"

// resources are the kinds of workloads that can be proven, by their names for kubectl.
var resources = map[string]string{
	"deployment": "deployments.apps", "deployments": "deployments.apps", "deploy": "deployments.apps",
	"statefulset": "statefulsets.apps", "statefulsets": "statefulsets.apps", "sts": "statefulsets.apps",
	"daemonset": "daemonsets.apps", "daemonsets": "daemonsets.apps", "ds": "daemonsets.apps",
}

// workload is a Deployment, a StatefulSet or a DaemonSet: the parts that they share have the
// same names.
type workload struct {
	resource string // as rights and kubectl name it

	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas       *int32                    `json:"replicas"`
		Selector       *metav1.LabelSelector     `json:"selector"`
		Template       corev1.PodTemplateSpec    `json:"template"`
		Paused         bool                      `json:"paused"`
		Strategy       appsv1.DeploymentStrategy `json:"strategy"`
		UpdateStrategy struct {
			Type          string `json:"type"`
			RollingUpdate struct {
				Partition int `json:"partition"`
			} `json:"rollingUpdate"`
		} `json:"updateStrategy"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64 `json:"observedGeneration"`
		Replicas           int   `json:"replicas"`
		UpdatedReplicas    int   `json:"updatedReplicas"`
		AvailableReplicas  int   `json:"availableReplicas"`
		// Of a DaemonSet.
		DesiredNumberScheduled int                          `json:"desiredNumberScheduled"`
		CurrentNumberScheduled int                          `json:"currentNumberScheduled"`
		UpdatedNumberScheduled int                          `json:"updatedNumberScheduled"`
		NumberAvailable        int                          `json:"numberAvailable"`
		Conditions             []appsv1.DeploymentCondition `json:"conditions"`
	} `json:"status"`
}

// String returns the workload as kubectl takes it, such as deployment/web.
func (d *workload) String() string { return strings.ToLower(d.kind()) + "/" + d.Name }

// kind returns the kind of the object, such as StatefulSet.
func (d *workload) kind() string {
	switch d.resource {
	case "statefulsets.apps":
		return "StatefulSet"
	case "daemonsets.apps":
		return "DaemonSet"
	}
	return "Deployment"
}

func (d *workload) isDaemonSet() bool { return d.kind() == "DaemonSet" }

func (d *workload) selector() string { return metav1.FormatLabelSelector(d.Spec.Selector) }

// replicas returns how many pods there have to be. A DaemonSet has one on each of its nodes.
func (d *workload) replicas() int {
	switch {
	case d.isDaemonSet():
		return d.Status.DesiredNumberScheduled
	case d.Spec.Replicas == nil:
		return 1
	}
	return int(*d.Spec.Replicas)
}

func (d *workload) available() int {
	if d.isDaemonSet() {
		return d.Status.NumberAvailable
	}
	return d.Status.AvailableReplicas
}

// hasRolled reports whether all of so many pods are new and available.
func (d *workload) hasRolled(want int) bool {
	s := d.Status
	if s.ObservedGeneration < d.Generation || d.available() != want {
		return false
	}
	if d.isDaemonSet() {
		return s.UpdatedNumberScheduled == want && s.CurrentNumberScheduled == want
	}
	return s.UpdatedReplicas == want && s.Replicas == want
}

func (d *workload) grace() int {
	if g := d.Spec.Template.Spec.TerminationGracePeriodSeconds; g != nil {
		return int(*g)
	}
	return 30
}

// serving returns the index of the container that has the Service's port.
func (d *workload) serving(p corev1.ServicePort) int {
	for i, c := range d.Spec.Template.Spec.Containers {
		for _, own := range c.Ports {
			if p.TargetPort.StrVal == own.Name && own.Name != "" || p.TargetPort.IntVal == own.ContainerPort {
				return i
			}
		}
	}
	return 0
}

// usable returns an error when a proof of the workload makes no sense now. i is the index
// of its serving container.
func (d *workload) usable(i int) error {
	c := d.Spec.Template.Spec.Containers[i]
	rolling := d.Spec.UpdateStrategy
	switch {
	case c.ReadinessProbe == nil:
		return cli.Fail(cli.ExitUsage, "%s: container %s has no readinessProbe: a new pod gets requests as soon as its container runs, "+
			"before its server listens, so every rollout loses some", d, c.Name).
			Hint("add %s.readinessProbe, and prove again", containerPath(i)).
			Hint("lifecyclectl vet checks the whole manifest")
	case d.Spec.Paused:
		return cli.Fail(cli.ExitUsage, "%s is paused, and would not roll", d).Hint("kubectl rollout resume %s", d)
	case rolling.Type == string(appsv1.OnDeleteStatefulSetStrategyType), rolling.RollingUpdate.Partition > 0:
		return cli.Fail(cli.ExitUsage, "%s would not replace all of its pods: spec.updateStrategy is OnDelete, or has a partition", d).
			Hint("set spec.updateStrategy to {type: RollingUpdate} for the proof")
	case d.replicas() == 0:
		return cli.Fail(cli.ExitUsage, "%s has 0 replicas: there is no pod to prove", d)
	case d.available() < d.replicas():
		return cli.Fail(cli.ExitUsage, "%s has %d of %d replicas available: prove starts only when all are", d, d.available(), d.replicas()).
			Hint("kubectl rollout status %s", d)
	}
	return nil
}

func containerPath(i int) string { return fmt.Sprintf("spec.template.spec.containers[%d]", i) }

type service struct{ corev1.Service }

func (s service) isHeadless() bool {
	return s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone
}

// selects reports whether the Service sends requests to the workload's pods.
func (s *service) selects(d *workload) bool {
	selector := labels.SelectorFromSet(s.Spec.Selector)
	return len(s.Spec.Selector) > 0 && selector.Matches(labels.Set(d.Spec.Template.Labels))
}

// choose returns the Service with this name, or the only one for the
// workload that balances: a StatefulSet has a headless one too.
func choose(all []service, name string, d *workload) (*service, error) {
	its := labels.FormatLabels(d.Spec.Template.Labels)
	if name != "" {
		i := slices.IndexFunc(all, func(s service) bool { return s.Name == name })
		switch {
		case i < 0:
			return nil, cli.Fail(cli.ExitNotFound, "there is no service/%s in this namespace", name)
		case !all[i].selects(d):
			return nil, cli.Fail(cli.ExitUsage, "service/%s does not select the pods of %s: its spec.selector is %s, and their labels are %s",
				name, d, labels.FormatLabels(all[i].Spec.Selector), its)
		}
		return &all[i], nil
	}
	all = slices.DeleteFunc(all, func(s service) bool { return !s.selects(d) })
	if balancing := slices.DeleteFunc(slices.Clone(all), service.isHeadless); len(balancing) > 0 {
		all = balancing
	}
	switch len(all) {
	case 0:
		return nil, cli.Fail(cli.ExitUsage, "no Service in this namespace selects the pods of %s, whose labels are %s", d, its)
	case 1:
		return &all[0], nil
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return nil, cli.Fail(cli.ExitUsage, "%d Services select the pods of %s: say which with --service %s", len(all), d, strings.Join(names, ", or "))
}

// port returns the port with this name or number, or the only one for HTTP.
func (s *service) port(name string) (corev1.ServicePort, error) {
	none := corev1.ServicePort{}
	if s.isHeadless() {
		return none, cli.Fail(cli.ExitUsage, "service/%s has no cluster IP (headless, or ExternalName): its clients choose pods by themselves; "+
			"prove needs one that balances", s.Name)
	}
	var tcp, web []corev1.ServicePort
	var words []string
	for _, p := range s.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		if name != "" && (p.Name == name || strconv.Itoa(int(p.Port)) == name) {
			return p, nil
		}
		tcp = append(tcp, p)
		words = append(words, strings.TrimSpace(fmt.Sprintf("%d %s", p.Port, p.Name)))
		if strings.HasPrefix(p.Name, "http") || p.Port == 80 {
			web = append(web, p)
		}
	}
	switch {
	case name != "" || len(tcp) == 0:
		return none, cli.Fail(cli.ExitUsage, "service/%s has no TCP port %s: it has %s", s.Name, name, strings.Join(words, ", "))
	case len(tcp) == 1:
		return tcp[0], nil
	case len(web) == 1:
		return web[0], nil
	}
	return none, cli.Fail(cli.ExitUsage, "service/%s has %d ports: say which with --port: %s", s.Name, len(tcp), strings.Join(words, ", "))
}

// speaksTLS reports whether the port says that it speaks TLS.
func speaksTLS(p corev1.ServicePort) bool {
	if p.AppProtocol != nil {
		return *p.AppProtocol == "https" || *p.AppProtocol == "kubernetes.io/wss"
	}
	return p.Name == "https" || strings.HasPrefix(p.Name, "https-") || p.Port == 443 || p.Port == 8443
}

// stop is how the manifest begins a pod's end.
type stop struct {
	path  string // of the preStop hook, or where one belongs
	hook  bool
	sleep time.Duration // of the hook, when it is known
	known bool
}

// stopOf reads the container's part of a stop.
func (d *workload) stopOf(i int) stop {
	c := d.Spec.Template.Spec.Containers[i]
	s := stop{path: containerPath(i) + ".lifecycle.preStop"}
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return s
	}
	s.hook = true
	switch hook := c.Lifecycle.PreStop; {
	case hook.Sleep != nil:
		s.known, s.sleep = true, time.Duration(hook.Sleep.Seconds)*time.Second
		s.path += ".sleep.seconds"
	case hook.Exec != nil:
		s.sleep, s.known = cmdline.Sleep(hook.Exec.Command)
		s.path += ".exec.command"
	}
	return s
}

// signalless returns the path of a command that keeps SIGTERM from the program: a shell that
// goes on waiting while its last command runs. It is "" when the manifest shows none.
func (d *workload) signalless(i int) string {
	c := d.Spec.Template.Spec.Containers[i]
	program, _ := cmdline.Wrapped(slices.Concat(c.Command, c.Args))
	switch {
	case cmdline.Shell(program) == "":
		return ""
	case len(c.Command) == 0:
		return containerPath(i) + ".args"
	}
	return containerPath(i) + ".command"
}

type object = map[string]any

// jobStart bounds the time until the Job's container runs.
const jobStart = 2 * time.Minute

// jobName returns a new name for the Job of one proof.
func jobName() string { return "lifecyclectl-prove-" + strings.ToLower(rand.Text()[:6]) }

// jobLabel is the key of the label with which the Job's pod names its Job.
const jobLabel = "lifecycle.pleme.io/prove-load"

// jobObject returns the Job that makes the load. It runs in a namespace with the restricted Pod
// Security Standard, and ends by itself when this process cannot end it.
func jobObject(name, image string, secrets []corev1.LocalObjectReference, plan load.Plan, limit time.Duration) (object, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	labels := object{"app.kubernetes.io/name": "lifecyclectl-prove", jobLabel: name}
	container := object{
		"name":  "load",
		"image": image,
		"args":  []string{Command, string(text)},
		// What keeps a program from starting is in the log, such as "exec /app: no such file".
		"terminationMessagePolicy": "FallbackToLogsOnError",
		"securityContext": object{
			"allowPrivilegeEscalation": false,
			"readOnlyRootFilesystem":   true,
			"capabilities":             object{"drop": []string{"ALL"}},
		},
		"resources": object{
			"requests": object{"cpu": "50m", "memory": "32Mi"},
			"limits":   object{"memory": "256Mi"},
		},
	}
	pod := object{
		"restartPolicy":                 "Never",
		"terminationGracePeriodSeconds": 1,
		"automountServiceAccountToken":  false,
		"enableServiceLinks":            false,
		"imagePullSecrets":              secrets,
		"securityContext":               object{"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": object{"type": "RuntimeDefault"}},
		"containers":                    []object{container},
	}
	return object{
		"apiVersion": "batch/v1",
		"kind":       "Job",
		"metadata":   object{"name": name, "labels": labels},
		"spec": object{
			"backoffLimit":            0,
			"activeDeadlineSeconds":   int(limit / time.Second),
			"ttlSecondsAfterFinished": 60,
			"template":                object{"metadata": object{"labels": labels}, "spec": pod},
		},
	}, nil
}

// Command is the hidden subcommand of lifecyclectl that the Job runs, with the plan
// as its argument.
const Command = "prove-load"

// awaitJob waits until the Job's container runs and returns the pod's name.
func (p *proof) awaitJob(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, jobStart, cli.Fail(cli.ExitFindings, "job/%s: its pod did not run within %v", p.job, jobStart).
		Hint("kubectl -n %s get events says why", p.k.namespace))
	defer cancel()
	for {
		var pods list[corev1.Pod]
		if err := p.k.get(ctx, &pods, "pods", "--selector", jobLabel+"="+p.job); err != nil {
			return "", causeOr(ctx, err)
		}
		for _, pod := range pods.Items {
			if err := startFault(pod, p.opts.Image); err != nil {
				return "", err
			}
			for _, c := range pod.Status.ContainerStatuses {
				if c.State.Running != nil {
					return pod.Name, nil
				}
			}
		}
		if !cli.Pause(ctx, 500*time.Millisecond) {
			return "", causeOr(ctx, context.Canceled)
		}
	}
}

// startFault says why the container of the load does not run, nil while it may still start.
func startFault(pod corev1.Pod, image string) error {
	for _, c := range pod.Status.ContainerStatuses {
		why := ""
		if end := c.State.Terminated; end != nil {
			why = fmt.Sprintf("exit status %d, %s %s", end.ExitCode, end.Reason, end.Message)
		}
		mayStart := []string{"", "ContainerCreating", "PodInitializing"}
		if wait := c.State.Waiting; wait != nil && !slices.Contains(mayStart, wait.Reason) {
			why = wait.Reason + ": " + wait.Message
		}
		if why != "" {
			return cli.Fail(cli.ExitFindings, "image %s does not run as the load: %s", image, strings.TrimSpace(why)).
				Hint("it has to be an image that the cluster can pull, and whose entry point is this version of lifecyclectl; " +
					"give it with --image")
		}
	}
	return nil
}

// causeOr returns the cause with which ctx ended when that is a *cli.Failure,
// and err otherwise.
func causeOr(ctx context.Context, err error) error {
	if cause, ok := context.Cause(ctx).(*cli.Failure); ok { //nolint:errorlint // it is ours, and not wrapped
		return cause
	}
	return err
}
