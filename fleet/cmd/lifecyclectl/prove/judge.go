package prove

import (
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// The times by which a loss is attributed.
const (
	seenLate = 500 * time.Millisecond // how late a change in the cluster may be seen here
	linger   = 15 * time.Second       // how long requests may still be sent to a pod that has gone
	newFor   = 5 * time.Second        // how long after it became ready a pod counts as new
	inFlight = 100 * time.Millisecond // the program was working on a request that was lost after this time
	margin   = 2                      // seconds beyond the latest loss
)

// Finding names what to change.
type Finding struct {
	Rule   string `json:"rule"`
	Object string `json:"object"`
	Path   string `json:"path,omitempty"`  // of the line in the manifest; "" when no line helps
	Value  string `json:"value,omitempty"` // what the line has now
	Want   string `json:"want,omitempty"`  // what it should have
	Losses int    `json:"losses"`
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// group is the losses of one cause.
type group struct {
	count       int
	first, last time.Duration // after the deletion of the pod
	endedEarly  bool          // a pod's container ended within a second of the deletion
	example     string
	pods        map[string]bool
}

// A cause of a loss.
const (
	noEndpoint    = "no-endpoint"         // no pod was ready
	tooEarly      = "ready-too-early"     // a new pod did not answer yet
	unknown       = "unexplained"         // no pod stopped or started
	answered      = "status"              // an answer of 500 or more while a pod stopped
	arrival       = "arrival"             // a new connection to a pod that accepts none any more
	unannounced   = "close-not-announced" // a kept connection was closed without Connection: close or GOAWAY
	goAwayTooSoon = "goaway-too-soon"     // HTTP/2's GOAWAY excluded a request that was on its way
	cutShort      = "request-cut"         // a request was being worked on
	killed        = "killed"              // the same, by SIGKILL
	streamCut     = "stream-cut"          // a stream ended in the middle
)

// causes are in the order of the report.
var causes = []string{noEndpoint, arrival, killed, cutShort, unannounced, goAwayTooSoon, streamCut, answered, tooEarly, unknown}

// attribute names the pod on which a request was probably lost, and why. A client
// sees only the Service's address, so the pod is the one whose stop was the latest.
func attribute(l lostRequest, pods []Pod, none bool, grace time.Duration) (*Pod, string) {
	at := l.at()
	var on *Pod
	var latest time.Time
	for i, p := range pods {
		if p.Deleted.IsZero() || at.Before(p.Deleted.Add(-seenLate)) {
			continue
		}
		critical := p.Deleted
		if !p.Ended.IsZero() && at.After(p.Ended.Add(-seenLate)) {
			if critical = p.Ended; at.After(p.Ended.Add(linger)) {
				continue
			}
		}
		if on == nil || critical.After(latest) {
			on, latest = &pods[i], critical
		}
	}
	var fresh *Pod
	for i, p := range pods {
		if !p.Ready.IsZero() && at.After(p.Ready.Add(-seenLate)) && at.Before(p.Ready.Add(newFor)) && p.Deleted.IsZero() {
			fresh = &pods[i]
		}
	}
	waited := l.Lost.Sub(l.Sent)
	switch {
	case none:
		return on, noEndpoint
	case fresh != nil && (on == nil || l.How == load.Refused && at.Sub(latest) > newFor):
		return fresh, tooEarly
	case on == nil:
		return nil, unknown
	case l.How == load.Status:
		return on, answered
	case l.Kind == load.Stream && l.How == load.Cut:
		return on, streamCut
	case l.How == load.Refused, l.How == load.Unreachable, l.How == load.Late, !l.Kept && waited < inFlight:
		return on, arrival
	case l.How == load.GoAway:
		return on, goAwayTooSoon
	case waited < inFlight:
		return on, unannounced
	case on.ExitCode != nil && *on.ExitCode == 137 && on.Ended.Sub(on.Deleted) > grace-time.Second:
		return on, killed
	}
	return on, cutShort
}

// judge groups the losses by cause, and names the line that prevents each.
func (p *proof) judge(losses []Loss, pods []Pod) []Finding {
	byName := make(map[string]Pod, len(pods))
	for _, pod := range pods {
		byName[pod.Name] = pod
	}
	groups := make(map[string]*group)
	for _, l := range losses {
		g := groups[l.Cause]
		if g == nil {
			g = &group{first: math.MaxInt64, pods: make(map[string]bool), example: l.Why}
			groups[l.Cause] = g
		}
		g.count++
		pod, ok := byName[l.Pod]
		if !ok || pod.Deleted.IsZero() {
			continue
		}
		g.pods[pod.Name] = true
		after := max(0, l.At.Sub(pod.Deleted))
		g.first, g.last = min(g.first, after), max(g.last, after)
		if !pod.Ended.IsZero() && pod.Ended.Sub(pod.Deleted) < time.Second {
			g.endedEarly = true
		}
	}
	var all []Finding
	for _, cause := range causes {
		if g := groups[cause]; g != nil {
			f := p.finding(cause, g)
			f.Object, f.Losses = "Deployment/"+p.d.Name, g.count
			all = append(all, f)
		}
	}
	return all
}

// programCauses are the causes that no line of the manifest prevents. A reason
// has how many were lost, and then an example.
var programCauses = map[string]struct{ what, reason, fix string }{
	cutShort: {
		"request", "the program closed connections while it worked on %s: %s",
		"at SIGTERM the program has to finish the requests that it has, before it ends",
	},
	unannounced: {
		"request", "clients sent %s on kept connections that the program had just closed, unannounced: %s",
		"once it stops, the program has to answer with Connection: close (on HTTP/2: GOAWAY) " +
			"and go on reading for longer than its clients are idle, before it closes connections",
	},
	goAwayTooSoon: {
		"request", "%s on HTTP/2 were on their way when the program's GOAWAY excluded them: %s",
		"the program has to send GOAWAY in two steps (RFC 9113, section 6.8): " +
			"first with the last stream id 2^31-1, and the real one a round trip later",
	},
	streamCut: {
		"stream", "the program cut %s: %s",
		"the program has to end its streams by itself once it stops, so that clients open them again elsewhere",
	},
	answered: {
		"request", "the answer to %s was %s",
		"while it stops, the program has to serve as before; a proxy that answers so has to stop after the program",
	},
}

func (p *proof) finding(cause string, g *group) Finding {
	if say, ok := programCauses[cause]; ok {
		f := Finding{Rule: cause, Fix: "no line of the manifest helps: " + say.fix}
		f.Reason = fmt.Sprintf(say.reason, number(g.count, say.what), g.example)
		if cause == answered {
			f.Reason += fmt.Sprintf(", from %s to %s after the deletion of a pod", clock(g.first), clock(g.last))
		}
		return f
	}
	lost := number(g.count, "request")
	switch cause {
	case noEndpoint:
		return p.noEndpoint(lost)
	case arrival:
		return p.windowFinding(g, lost)
	case killed:
		grace := p.d.grace()
		return Finding{
			Rule:   "grace-too-short",
			Path:   "spec.template.spec.terminationGracePeriodSeconds",
			Value:  fmt.Sprint(grace),
			Want:   fmt.Sprint(2 * grace),
			Reason: fmt.Sprintf("the kubelet killed the container %d s after the deletion, while it worked on %s", grace, lost),
			Fix:    fmt.Sprintf("set terminationGracePeriodSeconds to more than a stop takes, such as %d, or make the program end sooner", 2*grace),
		}
	case tooEarly:
		return Finding{
			Rule:   cause,
			Path:   containerPath(p.at) + ".readinessProbe",
			Reason: fmt.Sprintf("a new pod lost %s within %v after it became ready: %s", lost, newFor, g.example),
			Fix: "make the readinessProbe pass only once the server answers: it should ask the port that the Service sends to, " +
				"or a plane that waits for it",
		}
	}
	return Finding{
		Rule:   cause,
		Reason: fmt.Sprintf("the service lost %s while no pod of %s stopped or started: %s", lost, p.d, g.example),
		Fix:    "look at the program, its other pods and the network: this has nothing to do with stops",
	}
}

func (p *proof) noEndpoint(lost string) Finding {
	f := Finding{Rule: noEndpoint, Reason: fmt.Sprintf("service/%s had no ready endpoint for %s", p.svc.Name, lost)}
	switch s := p.d.Spec.Strategy; {
	case p.d.replicas() == 1:
		f.Path, f.Value, f.Want = "spec.replicas", "1", "2"
		f.Fix = "set spec.replicas to 2 or more: when the only pod goes, no other can answer"
	case s.Type == appsv1.RecreateDeploymentStrategyType:
		f.Path, f.Value, f.Want = "spec.strategy.type", "Recreate", "RollingUpdate"
		f.Fix = "set spec.strategy.type to RollingUpdate, with maxUnavailable: 0"
	default:
		f.Path, f.Want = "spec.strategy.rollingUpdate.maxUnavailable", "0"
		if s.RollingUpdate != nil && s.RollingUpdate.MaxUnavailable != nil {
			f.Value = s.RollingUpdate.MaxUnavailable.String()
		}
		f.Fix = "set spec.strategy.rollingUpdate.maxUnavailable to 0, and find out why the readinessProbe of running pods fails"
	}
	return f
}

// windowFinding names the number that keeps a stopping pod's server open for long
// enough, in the preStop hook or in the program's own drain window.
func (p *proof) windowFinding(g *group, lost string) Finding {
	s := p.d.stopOf(p.at)
	need := int(math.Ceil(g.last.Seconds())) + margin
	reason := fmt.Sprintf("%s reached stopping pods that took no new connection any more, from %s to %s after the deletion: the Service still sent them there",
		lost, clock(g.first), clock(g.last))
	f := Finding{Path: s.path, Reason: reason}
	longer := func(by time.Duration) string {
		return fmt.Sprintf("; then terminationGracePeriodSeconds, which is %d, has to be %d or more", p.d.grace(), p.d.grace()+int(math.Ceil(by.Seconds())))
	}
	switch {
	case s.drain.path != "":
		need = max(need-int(s.sleep.Seconds()), int(s.drain.value.Seconds())+margin)
		want := time.Duration(need) * time.Second
		f.Rule, f.Path, f.Value, f.Want = "drain-window-too-short", s.drain.path, s.drain.value.String(), want.String()
		f.Fix = fmt.Sprintf("set %s (%s) to %v or more%s", s.drain.path, s.drain.name, want, longer(want-s.drain.value))
	case s.known:
		need = max(need, int(s.sleep.Seconds())+margin)
		f.Rule, f.Value, f.Want = "prestop-too-short", fmt.Sprint(int(s.sleep.Seconds())), fmt.Sprint(need)
		f.Fix = fmt.Sprintf("set %s to %d or more%s", s.path, need, longer(time.Duration(need)*time.Second-s.sleep))
	case s.hook:
		f.Rule, f.Want = "prestop-too-short", fmt.Sprint(need)
		f.Fix = fmt.Sprintf("make the hook at %s take %d s or more%s", s.path, need, longer(time.Duration(need)*time.Second))
	case g.first > time.Second && !g.endedEarly:
		f.Rule, f.Want = "drain-window-too-short", fmt.Sprintf("%ds", need)
		f.Path = ""
		f.Fix = fmt.Sprintf("the program itself goes on for about %s after SIGTERM: "+
			"set its own drain window (lifecycle.drain_interval) to %d s or more, or add %s.sleep.seconds: %d%s",
			clock(g.first), need, s.path, need, longer(time.Duration(need)*time.Second))
	default:
		f.Rule, f.Want = "prestop-missing", fmt.Sprintf("sleep: {seconds: %d}", need)
		f.Reason += ", and the container closed at once, because nothing delays SIGTERM"
		f.Fix = fmt.Sprintf("add %s: {sleep: {seconds: %d}}%s", s.path, need, longer(time.Duration(need)*time.Second))
	}
	return f
}

// clock writes a time of a stop.
func clock(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
