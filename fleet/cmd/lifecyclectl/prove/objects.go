package prove

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Label on a Deployment with the value "allowed" lets prove touch it without asking.
const Label = "lifecycle.pleme.io/prove"

// Replicas is the annotation that remembers how many replicas a Deployment had,
// while prove has changed that.
const Replicas = "lifecycle.pleme.io/prove-replicas"

// meta is the used part of an object's metadata.
type meta struct {
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	Generation        int64             `json:"generation"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
}

// deployment is the used part of a Deployment.
type deployment struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		Replicas *int     `json:"replicas"`
		Paused   bool     `json:"paused"`
		Selector selector `json:"selector"`
		Strategy struct {
			Type          string `json:"type"`
			RollingUpdate struct {
				MaxUnavailable any `json:"maxUnavailable"`
			} `json:"rollingUpdate"`
		} `json:"strategy"`
		Template struct {
			Metadata meta    `json:"metadata"`
			Spec     podSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64 `json:"observedGeneration"`
		Replicas           int   `json:"replicas"`
		UpdatedReplicas    int   `json:"updatedReplicas"`
		AvailableReplicas  int   `json:"availableReplicas"`
		Conditions         []struct {
			Type    string `json:"type"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

type selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"matchExpressions"`
}

type podSpec struct {
	Grace      *int        `json:"terminationGracePeriodSeconds"`
	Containers []container `json:"containers"`
	// The load's image may be in the same registry.
	PullSecrets []object `json:"imagePullSecrets"`
}

type container struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	Ports []struct {
		Name string `json:"name"`
		Port int    `json:"containerPort"`
	} `json:"ports"`
	Lifecycle struct {
		PreStop *struct {
			Sleep *struct {
				Seconds int `json:"seconds"`
			} `json:"sleep"`
			Exec *struct {
				Command []string `json:"command"`
			} `json:"exec"`
		} `json:"preStop"`
	} `json:"lifecycle"`
	ReadinessProbe *struct {
		InitialDelaySeconds int `json:"initialDelaySeconds"`
		PeriodSeconds       int `json:"periodSeconds"`
		FailureThreshold    int `json:"failureThreshold"`
	} `json:"readinessProbe"`
}

// service is the used part of a Service.
type service struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		Type      string            `json:"type"`
		ClusterIP string            `json:"clusterIP"`
		Selector  map[string]string `json:"selector"`
		Ports     []servicePort     `json:"ports"`
	} `json:"spec"`
}

type servicePort struct {
	Name        string `json:"name"`
	Port        int    `json:"port"`
	TargetPort  any    `json:"targetPort"` // a number or a name
	Protocol    string `json:"protocol"`
	AppProtocol string `json:"appProtocol"`
}

// list is any list of objects.
type list[T any] struct {
	Items []T `json:"items"`
}

// String writes the selector as kubectl reads it.
func (s selector) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		parts = append(parts, k+"="+s.MatchLabels[k])
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case "In", "NotIn":
			parts = append(parts, fmt.Sprintf("%s %s (%s)", e.Key, strings.ToLower(e.Operator), strings.Join(e.Values, ",")))
		case "Exists":
			parts = append(parts, e.Key)
		case "DoesNotExist":
			parts = append(parts, "!"+e.Key)
		}
	}
	return strings.Join(parts, ",")
}

func (d *deployment) String() string { return "deployment/" + d.Metadata.Name }

// replicas returns the number of replicas that the Deployment should have. An earlier
// proof that was killed has left that number in an annotation.
func (d *deployment) replicas() int {
	if n, err := strconv.Atoi(d.Metadata.Annotations[Replicas]); err == nil && n > 0 {
		return n
	}
	return d.now()
}

// now returns the number of replicas in its spec.
func (d *deployment) now() int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func (d *deployment) grace() int {
	if d.Spec.Template.Spec.Grace == nil {
		return 30
	}
	return *d.Spec.Template.Spec.Grace
}

// serving returns the index of the container that has the Service's port.
func (d *deployment) serving(p servicePort) int {
	for i, c := range d.Spec.Template.Spec.Containers {
		for _, own := range c.Ports {
			if p.TargetPort == own.Name || p.TargetPort == float64(own.Port) {
				return i
			}
		}
	}
	return 0
}

// usable returns an error when a proof of the Deployment makes no sense now.
func (d *deployment) usable() error {
	switch {
	case d.Spec.Paused:
		return refuse(Usage, "%s is paused, and would not roll", d).hint("kubectl rollout resume %s", d)
	case d.replicas() == 0:
		return refuse(Usage, "%s has spec.replicas 0: there is no pod to prove", d)
	case d.Status.AvailableReplicas < d.now():
		return refuse(Usage, "%s has %d of %d replicas available: prove starts only when all are", d, d.Status.AvailableReplicas, d.now()).
			hint("kubectl rollout status %s", d)
	}
	return nil
}

// probed returns an error when the container has no readiness probe.
func (d *deployment) probed(i int) error {
	c := d.Spec.Template.Spec.Containers[i]
	if c.ReadinessProbe != nil {
		return nil
	}
	return refuse(Usage, "%s: container %s has no readinessProbe: a new pod gets requests as soon as its container runs, before its server listens, so every rollout loses some", d, c.Name).
		hint("add %s.readinessProbe, and prove again", containerPath(i)).
		hint("lifecyclectl vet checks the whole manifest")
}

func containerPath(i int) string { return fmt.Sprintf("spec.template.spec.containers[%d]", i) }

// selects reports whether the Service sends requests to the Deployment's pods.
func (s *service) selects(d *deployment) bool {
	for k, v := range s.Spec.Selector {
		if d.Spec.Template.Metadata.Labels[k] != v {
			return false
		}
	}
	return len(s.Spec.Selector) > 0
}

// choose returns the Service with this name, or the only one for the Deployment.
func choose(all []service, name string, d *deployment) (*service, error) {
	var names []string
	var found *service
	for i, s := range all {
		if name != "" && s.Metadata.Name == name {
			if len(s.Spec.Selector) == 0 {
				return nil, refuse(Usage, "service/%s has no spec.selector, so it sends no request to the pods of %s", name, d)
			}
			if !s.selects(d) {
				return nil, refuse(Usage, "service/%s does not select the pods of %s: its spec.selector is %s, and their labels are %s",
					name, d, pairs(s.Spec.Selector), pairs(d.Spec.Template.Metadata.Labels))
			}
			return &all[i], nil
		}
		if s.selects(d) {
			names = append(names, s.Metadata.Name)
			found = &all[i]
		}
	}
	switch {
	case name != "":
		return nil, refuse(NotFound, "there is no service/%s in this namespace", name)
	case len(names) == 0:
		return nil, refuse(Usage, "no Service in this namespace selects the pods of %s, whose labels are %s", d, pairs(d.Spec.Template.Metadata.Labels))
	case len(names) > 1:
		return nil, refuse(Usage, "%d Services select the pods of %s: say which with --service %s", len(names), d, strings.Join(names, ", or "))
	}
	return found, nil
}

// port returns the port with this name or number, or the only one for HTTP.
func (s *service) port(name string) (servicePort, error) {
	if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == "None" {
		return servicePort{}, refuse(Usage, "service/%s has no cluster IP (headless, or ExternalName): its clients choose pods by themselves; prove needs one that balances", s.Metadata.Name)
	}
	var tcp []servicePort
	var words []string
	for _, p := range s.Spec.Ports {
		if p.Protocol != "" && p.Protocol != "TCP" {
			continue
		}
		if name != "" && (p.Name == name || strconv.Itoa(p.Port) == name) {
			return p, nil
		}
		tcp = append(tcp, p)
		words = append(words, strings.TrimSpace(fmt.Sprintf("%d %s", p.Port, p.Name)))
	}
	if name != "" || len(tcp) == 0 {
		return servicePort{}, refuse(Usage, "service/%s has no TCP port %s: it has %s", s.Metadata.Name, name, strings.Join(words, ", "))
	}
	if len(tcp) == 1 {
		return tcp[0], nil
	}
	web := slices.DeleteFunc(slices.Clone(tcp), func(p servicePort) bool { return !strings.HasPrefix(p.Name, "http") && p.Port != 80 })
	if len(web) != 1 {
		return servicePort{}, refuse(Usage, "service/%s has %d ports: say which with --port: %s", s.Metadata.Name, len(tcp), strings.Join(words, ", "))
	}
	return web[0], nil
}

// tls reports whether the port says that it speaks TLS.
func (p servicePort) tls() bool {
	switch p.AppProtocol {
	case "":
		return p.Name == "https" || strings.HasPrefix(p.Name, "https-") || p.Port == 443 || p.Port == 8443
	case "https", "kubernetes.io/wss":
		return true
	}
	return false
}

func pairs(m map[string]string) string {
	var b []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = append(b, k+"="+m[k])
	}
	if len(b) == 0 {
		return "empty"
	}
	return strings.Join(b, ",")
}

// stop is how the manifest begins a pod's end.
type stop struct {
	path  string // of the preStop hook, or where one belongs
	hook  bool
	sleep time.Duration // of the hook, when it is known
	known bool
	drain setting // the program's own drain window, when the manifest has it
}

// setting is a line of the manifest that sets a duration.
type setting struct {
	path  string
	name  string
	value time.Duration
}

var drainName = regexp.MustCompile(`(?i)drain[-_.]?(interval|window|delay|seconds|time|period)|(shutdown|termination)[-_.]?delay`)

// stopOf reads the container's part of a stop.
func (d *deployment) stopOf(i int) stop {
	c := d.Spec.Template.Spec.Containers[i]
	s := stop{path: containerPath(i) + ".lifecycle.preStop"}
	if hook := c.Lifecycle.PreStop; hook != nil {
		s.hook = true
		if hook.Sleep != nil {
			s.known, s.sleep = true, time.Duration(hook.Sleep.Seconds)*time.Second
			s.path += ".sleep.seconds"
		} else if hook.Exec != nil {
			s.sleep, s.known = sleepIn(hook.Exec.Command)
			s.path += ".exec.command"
		}
	}
	for j, e := range c.Env {
		if drainName.MatchString(e.Name) {
			if v, ok := duration(e.Value); ok {
				s.drain = setting{fmt.Sprintf("%s.env[%d].value", containerPath(i), j), e.Name, v}
			}
		}
	}
	for list, words := range map[string][]string{"args": c.Args, "command": c.Command} {
		for j, w := range words {
			name, value, ok := strings.Cut(w, "=")
			if !drainName.MatchString(name) {
				continue
			}
			at := j
			if !ok && j+1 < len(words) {
				at, value = j+1, words[j+1]
			}
			if v, ok := duration(value); ok {
				s.drain = setting{fmt.Sprintf("%s.%s[%d]", containerPath(i), list, at), strings.TrimLeft(name, "-"), v}
			}
		}
	}
	return s
}

var sleeps = regexp.MustCompile(`(?:^|[\s;&/])sleep\s+([0-9.]+)`)

// sleepIn finds the sleep of a hook's command.
func sleepIn(command []string) (time.Duration, bool) {
	m := sleeps.FindStringSubmatch(strings.Join(command, " "))
	if m == nil {
		return 0, false
	}
	return duration(m[1])
}

// duration reads 5s, or a number of seconds; off is 0.
func duration(text string) (time.Duration, bool) {
	if text == "off" {
		return 0, true
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return time.Duration(n * float64(time.Second)), true
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}
