package prove

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
	soonest     time.Duration // after the deletion, the first end of a pod's container; -1 for none
	example     string
	pod         *Pod // the one that lost the latest
	rate        bool // stops lost no more than all other times
	kept        bool // a lost request was on a kept connection
}

// A cause of a loss.
const (
	noEndpoint    = "no-endpoint"         // no pod was ready
	tooEarly      = "ready-too-early"     // a new pod did not answer yet
	unknown       = "unexplained"         // no pod stopped or started
	crashed       = "container-ended"     // the container had ended by itself
	failedStop    = "stop-failed"         // the container failed during its stop
	answered      = "status"              // an answer of 500 or more while a pod stopped
	arrival       = "arrival"             // a new connection to a pod that accepts none any more
	unannounced   = "close-not-announced" // a kept connection was closed without Connection: close or GOAWAY
	goAwayTooSoon = "goaway-too-soon"     // HTTP/2's GOAWAY excluded a request that was on its way
	cutShort      = "request-cut"         // a request was being worked on
	killed        = "killed"              // the kubelet killed the container, because its grace was over
	streamCut     = "stream-cut"          // a stream ended in the middle
)

// causes are in the order of the report.
var causes = []string{crashed, killed, failedStop, noEndpoint, arrival, cutShort, unannounced, goAwayTooSoon, streamCut, answered, tooEarly, unknown}

// attribute names the pod on which a request was probably lost, and why. A client
// sees only the Service's address, so the pod is the one whose stop was the latest.
// How the container ended is evidence, and comes before what the client saw.
func attribute(l load.Loss, pods []Pod, none bool) (*Pod, string) {
	at := l.At()
	var on *Pod
	var latest time.Time
	isCrash := false
	for i, p := range pods {
		for _, r := range p.Restarts {
			if near(at, r.At, r.At) && r.At.After(latest) {
				on, latest, isCrash = &pods[i], r.At, true
			}
		}
		if p.Deleted.IsZero() || at.Before(p.Deleted.Add(-seenLate)) {
			continue
		}
		critical := p.Deleted
		if !p.Ended.IsZero() && at.After(p.Ended.Add(-seenLate)) {
			if critical = p.Ended; !near(at, p.Deleted, p.Ended) {
				continue
			}
		}
		if on == nil || critical.After(latest) {
			on, latest, isCrash = &pods[i], critical, false
		}
	}
	var fresh *Pod
	for i, p := range pods {
		if !p.Ready.IsZero() && at.After(p.Ready.Add(-seenLate)) && at.Before(p.Ready.Add(newFor)) && p.Deleted.IsZero() {
			fresh = &pods[i]
		}
	}
	waited := l.Lost.Sub(l.Sent)
	isOver := on != nil && !on.Ended.IsZero() && at.After(on.Ended.Add(-seenLate))
	isArrival := l.How == load.Refused || l.How == load.Unreachable || l.How == load.Late || !l.Kept && waited < inFlight
	switch {
	case isCrash:
		return on, crashed
	case none:
		return on, noEndpoint
	case fresh != nil && (on == nil || l.How == load.Refused && at.Sub(latest) > newFor):
		return fresh, tooEarly
	case on == nil:
		return nil, unknown
	case isOver && on.wasKilled():
		return on, killed
	case isOver && on.hasFailed() && !isArrival && l.How != load.Status:
		return on, failedStop
	case l.How == load.Status:
		return on, answered
	case l.Kind == load.Stream && l.How == load.Cut:
		return on, streamCut
	case isArrival:
		return on, arrival
	case l.How == load.GoAway:
		return on, goAwayTooSoon
	case waited < inFlight:
		return on, unannounced
	}
	return on, cutShort
}

// near reports whether a request that was lost at that time may have been lost because a
// container stopped: it began to at from, and had ended at end.
func near(at, from, end time.Time) bool {
	return !at.Before(from.Add(-seenLate)) && !at.After(end.Add(linger))
}

// baselines takes losses away from stops that explain no more of them than chance does: a
// program that answers 500 once in 300 does so during a stop too. The losses without a stop
// near them say how many to expect. A loss that the end of a container proves stays.
func (p *proof) baselines(losses []Loss, pods []Pod) {
	quiet, busy := p.shares(pods)
	key := func(l Loss) string {
		if l.How == string(load.Status) {
			return l.Why
		}
		return l.How
	}
	isProven := func(l Loss) bool { return slices.Contains([]string{crashed, killed, failedStop, noEndpoint}, l.Cause) }
	far, near := map[string]float64{}, map[string]float64{}
	for _, l := range losses {
		switch {
		case l.Cause == unknown:
			far[key(l)]++
		case !isProven(l):
			near[key(l)]++
		}
	}
	for i, l := range losses {
		expected := far[key(l)] * busy / quiet
		// Two standard deviations of what chance makes of the expectation, and one loss.
		isChance := far[key(l)] > 0 && near[key(l)] <= expected+2*math.Sqrt(expected)+1
		if isChance && !isProven(l) && l.Cause != unknown {
			l.Cause, l.Pod, l.AfterDeletion, l.AfterEnd, l.nearAStop = unknown, "", nil, nil, true
			losses[i] = l
		}
	}
}

// shares returns how many tenths of a second the load ran without a stop or a start near it, and
// with one.
func (p *proof) shares(pods []Pod) (quiet, busy float64) {
	isNear := func(at time.Time) bool {
		return slices.ContainsFunc(pods, func(pod Pod) bool {
			end := pod.Ended
			if end.IsZero() {
				end = p.ended
			}
			isRestart := func(r Restart) bool { return near(at, r.At, r.At) }
			isNew := !pod.Ready.IsZero() && at.After(pod.Ready.Add(-seenLate)) && at.Before(pod.Ready.Add(newFor))
			return isNew || !pod.Deleted.IsZero() && near(at, pod.Deleted, end) || slices.ContainsFunc(pod.Restarts, isRestart)
		})
	}
	for at := p.began; at.Before(p.ended); at = at.Add(100 * time.Millisecond) {
		if isNear(at) {
			busy++
		} else {
			quiet++
		}
	}
	return max(quiet, 10), busy
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
			g = &group{first: math.MaxInt64, soonest: -1, example: l.Why}
			groups[l.Cause] = g
		}
		g.count++
		g.rate = g.rate || l.nearAStop
		g.kept = g.kept || l.Kept
		pod, ok := byName[l.Pod]
		if !ok {
			continue
		}
		g.pod = &pod
		if pod.Deleted.IsZero() {
			continue
		}
		after := max(0, l.At.Sub(pod.Deleted))
		g.first, g.last = min(g.first, after), max(g.last, after)
		if took := pod.Ended.Sub(pod.Deleted); !pod.Ended.IsZero() && (g.soonest < 0 || took < g.soonest) {
			g.soonest = took
		}
	}
	var all []Finding
	for _, cause := range causes {
		if g := groups[cause]; g != nil {
			f := p.finding(cause, g, pods)
			f.Object, f.Losses = p.d.kind()+"/"+p.d.Name, g.count
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

func (p *proof) finding(cause string, g *group, pods []Pod) Finding {
	if say, ok := programCauses[cause]; ok {
		f := Finding{Rule: cause, Fix: say.fix}
		if cause != answered {
			f.Fix += p.proxyAdvice()
		}
		f.Reason = fmt.Sprintf(say.reason, number(g.count, say.what), g.example) + g.evidence()
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
	case crashed:
		return p.crashFinding(lost, pods)
	case killed:
		return p.killFinding(lost, g, pods)
	case failedStop:
		f := Finding{Rule: cause, Reason: fmt.Sprintf("the container failed during its stop, with %s open: %s%s", lost, g.example, g.evidence())}
		f.Fix = "the program has to end with 0 once its requests have their answers; " +
			"a main function that returns, or fails, when its listener closes ends before that" + p.proxyAdvice()
		if g.pod.Reason == outOfMemory {
			f.Path = containerPath(p.at) + ".resources.limits.memory"
			f.Fix = "set resources.limits.memory to more than a stop needs, or make the program need less"
		}
		return f
	case tooEarly:
		return Finding{
			Rule:   cause,
			Path:   containerPath(p.at) + ".readinessProbe",
			Reason: fmt.Sprintf("a new pod lost %s within %v after it became ready: %s", lost, newFor, g.example),
			Fix: "make the readinessProbe pass only once the server answers: it should ask the port that the Service sends to, " +
				"or a plane that waits for it",
		}
	}
	f := Finding{
		Rule:   cause,
		Reason: fmt.Sprintf("the service lost %s while no pod of %s stopped or started: %s", lost, p.d, g.example),
		Fix:    "look at the program, its other pods and the network: this has nothing to do with stops",
	}
	if g.rate {
		f.Reason = fmt.Sprintf("the service lost %s, during stops no more often than at all other times: %s", lost, g.example)
	}
	return f
}

// evidence says how the container of the group's pod ended, "" when that was not seen.
func (g *group) evidence() string {
	if g.pod == nil || g.pod.ExitCode == nil {
		return ""
	}
	return fmt.Sprintf("; the container of pod %s ended %s after the deletion, %s",
		g.pod.Name, clock(g.pod.Ended.Sub(g.pod.Deleted)), ending(*g.pod.ExitCode, g.pod.Reason, g.pod.Said))
}

// ending describes the end of a container.
func ending(code int, reason, last string) string {
	text := fmt.Sprintf("with exit status %d", code)
	if reason == outOfMemory {
		text += " (" + reason + ")"
	}
	return text + said(last)
}

// crashFinding is about containers that ended without a deletion of their pods.
func (p *proof) crashFinding(lost string, pods []Pod) Finding {
	f := Finding{Rule: crashed, Fix: "look at the log of the container before its restart: this has nothing to do with stops"}
	count := 0
	var last Restart
	for _, pod := range pods {
		count += len(pod.Restarts)
		for _, r := range pod.Restarts {
			if r.At.After(last.At) {
				last = r
			}
		}
	}
	f.Reason = fmt.Sprintf("the container ended by itself %s, and lost %s; the last time it ended %s",
		number(count, "time"), lost, ending(last.ExitCode, last.Reason, last.Said))
	switch last.ExitCode {
	case 137, 143:
		if last.Reason != outOfMemory {
			f.Fix = "a failed liveness probe ends a container so: kubectl describe pod has its events"
			break
		}
		f.Path = containerPath(p.at) + ".resources.limits.memory"
		f.Fix = "set resources.limits.memory to more than the program needs, or make it need less"
	}
	return f
}

// killFinding is about containers that the kubelet killed because their grace was over. The
// pod with more time shows whether they end at all.
func (p *proof) killFinding(lost string, g *group, pods []Pod) Finding {
	grace := p.d.grace()
	f := Finding{
		Rule:   "grace-too-short",
		Path:   "spec.template.spec.terminationGracePeriodSeconds",
		Value:  fmt.Sprint(grace),
		Reason: fmt.Sprintf("the kubelet killed containers when their grace of %d s was over, and so lost %s: %s", grace, lost, g.example),
	}
	want := 2 * grace
	s := p.d.stopOf(p.at)
	for _, pod := range pods {
		if pod.Grace <= grace || pod.ExitCode == nil {
			continue
		}
		if pod.wasKilled() {
			f.Rule, f.Path, f.Value = "stop-signal-ignored", p.d.signalless(p.at), ""
			f.Reason += fmt.Sprintf("; with a grace of %d s pod %s did not end either%s", pod.Grace, pod.Name, said(pod.Said))
			f.Fix = "no grace helps: the program has to end at SIGTERM. A shell does not pass the signal on, " +
				"and the first process of a container gets no signal that it has no handler for: run the program under an init, such as lifecycle-run"
			if g.kept {
				f.Fix += p.proxyAdvice()
			}
			if f.Path != "" {
				f.Fix = "begin the last command of the shell's script with exec, or start the program without a shell: a shell does not pass SIGTERM on"
			}
			return f
		}
		took := pod.Ended.Sub(pod.Deleted)
		want = int(math.Ceil(took.Seconds())) + margin
		f.Reason += fmt.Sprintf("; with a grace of %d s pod %s ended by itself after %s", pod.Grace, pod.Name, clock(took))
	}
	if s.sleep.Seconds() >= float64(want-margin) {
		want = int(math.Ceil(s.sleep.Seconds())) + grace
	}
	f.Want = fmt.Sprint(want)
	f.Fix = fmt.Sprintf("set terminationGracePeriodSeconds to more than a stop takes, such as %d, or make the program end sooner", want)
	return f
}

// proxyAdvice is the end of a fix that lifecycle-run can do in the place of a program. Its proxy
// does not speak TLS.
func (p *proof) proxyAdvice() string {
	if speaksTLS(p.port) {
		return ""
	}
	return "; for a program that is not an App, lifecycle-run with --proxy in front of it " +
		"(command and config.proxy of the chart) does so in its place"
}

// said quotes a last line, "" for none.
func said(line string) string {
	if line == "" {
		return ""
	}
	return fmt.Sprintf(", and its last line was %q", line)
}

func (p *proof) noEndpoint(lost string) Finding {
	f := Finding{Rule: noEndpoint, Reason: fmt.Sprintf("service/%s had no ready endpoint for %s", p.svc.Name, lost)}
	switch s := p.d.Spec.Strategy; {
	case p.d.isDaemonSet():
		f.Path, f.Want = "spec.updateStrategy.rollingUpdate", "{maxSurge: 1, maxUnavailable: 0}"
		f.Fix = "set spec.updateStrategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}, so that a node keeps its pod until the next one is ready"
	case p.d.replicas() == 1:
		f.Path, f.Value, f.Want = "spec.replicas", "1", "2"
		f.Fix = "set spec.replicas to 2 or more: when the only pod goes, no other can answer"
	case p.d.kind() == "StatefulSet":
		f.Path = containerPath(p.at) + ".readinessProbe"
		f.Fix = "find out why the readinessProbe of running pods fails: a StatefulSet replaces one pod at a time"
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

// windowFinding names the number that keeps a stopping pod's server open for long enough.
func (p *proof) windowFinding(g *group, lost string) Finding {
	s := p.d.stopOf(p.at)
	need := int(math.Ceil(g.last.Seconds())) + margin
	reason := fmt.Sprintf("%s reached stopping pods that took no new connection any more, from %s to %s after the deletion: the Service still sent them there",
		lost, clock(g.first), clock(g.last))
	f := Finding{Path: s.path, Reason: reason + g.evidence()}
	if endedIn := g.soonest; s.known && endedIn >= 0 && endedIn < s.sleep-time.Second {
		// A longer wait would not be kept either.
		f.Rule, f.Value = "window-not-kept", s.sleep.String()
		f.Fix = fmt.Sprintf("find out why the container ended after %s, within a hook of %v", clock(endedIn), s.sleep)
		return f
	}
	longer := func(by time.Duration) string {
		return fmt.Sprintf("; then terminationGracePeriodSeconds, which is %d, has to be %d or more", p.d.grace(), p.d.grace()+int(math.Ceil(by.Seconds())))
	}
	isApp := g.pod != nil && strings.Contains(g.pod.Said, "(draining ") // its last words tell how long it drained
	switch {
	case s.hook:
		need = max(need, int(s.sleep.Seconds())+margin)
		f.Rule, f.Want = "prestop-too-short", fmt.Sprint(need)
		if s.known {
			f.Value = fmt.Sprint(int(s.sleep.Seconds()))
		}
		more := time.Duration(need)*time.Second - s.sleep
		f.Fix = fmt.Sprintf("make the hook at %s take %d s or more%s", s.path, need, longer(more))
	case isApp, g.first > time.Second && (g.soonest < 0 || g.soonest >= time.Second):
		f.Rule, f.Want = "drain-window-too-short", fmt.Sprintf("%ds", need)
		f.Path = ""
		goesOn := fmt.Sprintf("the program itself goes on for about %s after SIGTERM", clock(g.first))
		if isApp {
			goesOn = fmt.Sprintf("the program is an App, and its last words were %q", g.pod.Said)
		}
		f.Fix = fmt.Sprintf("%s: set its own drain window (lifecycle.drain_interval) to %d s or more, or add %s.sleep.seconds: %d%s",
			goesOn, need, s.path, need, longer(time.Duration(need)*time.Second))
	default:
		f.Rule, f.Want = "prestop-missing", fmt.Sprintf("sleep: {seconds: %d}", need)
		f.Reason += ", and the container closed at once, because nothing delays SIGTERM"
		f.Fix = fmt.Sprintf("add %s: {sleep: {seconds: %d}}%s", s.path, need, longer(time.Duration(need)*time.Second))
	}
	return f
}

// clock writes a time of a stop.
func clock(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
