package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// lost makes a loss that was noticed at seconds after the deletion of web-1.
func lost(kind string, how load.How, kept bool, waited, at float64) lostRequest {
	return lostRequest{load.Loss{Kind: kind, How: how, Kept: kept, Sent: after(at - waited), Lost: after(at), Why: "why"}}
}

// stopped returns a pod that was deleted at T0 and whose container ended this many
// seconds later.
func stopped(ended float64, code int) Pod {
	return Pod{Name: "web-1", Ready: after(-60), Deleted: t0, Unready: after(0.1), Removed: after(ended), Ended: after(ended), ExitCode: &code, Grace: 30}
}

// onlyFinding returns the one finding about these ends and losses.
func onlyFinding(t *testing.T, p *proof, pods []Pod, losses []lostRequest) Finding {
	t.Helper()
	for _, pod := range pods {
		p.pods.pods = append(p.pods.pods, &pod)
	}
	p.load.first = &load.Hello{}
	for _, l := range losses {
		p.load.lost = append(p.load.lost, l.Loss)
	}
	r := p.report()
	if len(r.Findings) != 1 {
		t.Fatalf("%d findings, want one: %+v", len(r.Findings), r.Findings)
	}
	return r.Findings[0]
}

// of returns a proof of a Deployment with these additional fields in its spec and in its
// container.
func of(t *testing.T, spec, container string) *proof {
	t.Helper()
	d := new(workload)
	text := strings.NewReplacer(`"name": "main"`, `"name": "main"`+container, `"replicas": 2, "selector"`, `"replicas": 2`+spec+`, "selector"`).Replace(webDeployment)
	if err := json.Unmarshal([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	svc := new(service)
	if err := json.Unmarshal([]byte(webService), svc); err != nil {
		t.Fatal(err)
	}
	return &proof{d: d, svc: svc, k: &kubectl{namespace: "shop"}, port: svc.Spec.Ports[0], pods: &timeline{slices: map[string]map[types.UID]bool{}}, load: newAccount(),
		steps: []Step{{Name: "rolling restart", Began: after(-10), Ended: after(60)}}, began: after(-20), ended: after(80)}
}

// Each loss has one cause, and each cause names the line that prevents it.
func TestTheRightNumberIsNamed(t *testing.T) {
	const main = "spec.template.spec.containers[0]"
	sleep := func(command string) string { return `, "lifecycle": {"preStop": ` + command + `}` }
	late := []lostRequest{lost(load.Fresh, load.Refused, false, 0, 1.2), lost(load.Fresh, load.Unreachable, false, 3, 7.5), lost(load.Kept, load.Refused, false, 0, 3.8)}
	atOnce := append([]lostRequest{lost(load.Fresh, load.Refused, false, 0, 0.2)}, late...)
	for name, tt := range map[string]struct {
		spec, container string
		pod             Pod
		losses          []lostRequest
		none            bool
		want            Finding // Rule, Path, Value and Want
		says            []string
	}{
		"nothing delays SIGTERM": {pod: stopped(0.3, 0), losses: atOnce,
			want: Finding{Rule: "prestop-missing", Path: main + ".lifecycle.preStop", Want: "sleep: {seconds: 7}"}, says: []string{"4 requests", "from 0.2s to 4.5s", "which is 30, has to be 37 or more"}},
		"the sleep is too short": {container: sleep(`{"sleep": {"seconds": 1}}`), pod: stopped(1.3, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.sleep.seconds", Value: "1", Want: "7"}, says: []string{"36 or more"}},
		"so is a shell's": {container: sleep(`{"exec": {"command": ["sh", "-c", "sleep 1 && true"]}}`), pod: stopped(1.3, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.exec.command", Value: "1", Want: "7"}},
		"a minute is not a second": {container: sleep(`{"exec": {"command": ["sleep", "1m"]}}`), pod: stopped(60.3, 0),
			losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 60.2)},
			want:   Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.exec.command", Value: "60", Want: "63"}},
		"two sleeps are a sum": {container: sleep(`{"exec": {"command": ["sh", "-c", "sleep 1 && sleep 1.5s"]}}`), pod: stopped(2.8, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.exec.command", Value: "2", Want: "7"}},
		"a hook of unknown time": {container: sleep(`{"httpGet": {"path": "/bye"}}`), pod: stopped(1.3, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop", Want: "7"}},
		"the window in an argument": {container: `, "args": ["-x", "-drain-interval=1s"]`, pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Path: main + ".args[1]", Value: "1s", Want: "7s"}, says: []string{"drain-interval", "36 or more"}},
		"in two arguments": {container: `, "args": ["--drain-interval", "1s"]`, pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Path: main + ".args[1]", Value: "1s", Want: "7s"}},
		"in the environment": {container: `, "env": [{"name": "A", "value": "b"}, {"name": "SERVICE_LIFECYCLE_DRAIN_INTERVAL", "value": "1s"}]`, pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Path: main + ".env[1].value", Value: "1s", Want: "7s"}},
		"behind a hook": {container: sleep(`{"sleep": {"seconds": 2}}`) + `, "args": ["-drain-interval=1s"]`, pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Path: main + ".args[0]", Value: "1s", Want: "5s"}},
		"nowhere in the manifest": {pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Want: "7s"}, says: []string{"goes on for about 1.2s after SIGTERM", "lifecycle.drain_interval", main + ".lifecycle.preStop.sleep.seconds: 7"}},
		"killed": {spec: "", pod: stopped(30.4, 137), losses: []lostRequest{lost(load.Kept, load.Closed, true, 12, 30.3)},
			want: Finding{Rule: "grace-too-short", Path: "spec.template.spec.terminationGracePeriodSeconds", Value: "30", Want: "60"}},
		"cut": {pod: stopped(6, 0), losses: []lostRequest{lost(load.Kept, load.Cut, true, 1, 6)}, want: Finding{Rule: "request-cut"}},
		"closed while idle": {pod: stopped(0.3, 0), losses: []lostRequest{lost(load.Kept, load.Closed, true, 0, 0.4), lost(load.HTTP2, load.Closed, true, 0, 0.4)},
			want: Finding{Rule: "close-not-announced"}, says: []string{"2 requests", "Connection: close"}},
		"one step of GOAWAY": {pod: stopped(6, 0), losses: []lostRequest{lost(load.HTTP2, load.GoAway, true, 0, 1.1)}, want: Finding{Rule: "goaway-too-soon"}, says: []string{"1 request on HTTP/2", "2^31-1"}},
		"a stream":           {pod: stopped(6, 0), losses: []lostRequest{lost(load.Stream, load.Cut, false, 40, 6)}, want: Finding{Rule: "stream-cut"}, says: []string{"cut 1 stream"}},
		"503":                {pod: stopped(6, 0), losses: []lostRequest{lost(load.Kept, load.Status, true, 0, 2)}, want: Finding{Rule: "status"}, says: []string{"2.0s"}},
		"one pod":            {none: true, pod: stopped(6, 0), losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 2)}, want: Finding{Rule: "no-endpoint", Path: "spec.strategy.rollingUpdate.maxUnavailable", Want: "0"}},
		"Recreate":           {spec: `, "strategy": {"type": "Recreate"}`, none: true, pod: stopped(6, 0), losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 2)}, want: Finding{Rule: "no-endpoint", Path: "spec.strategy.type", Value: "Recreate", Want: "RollingUpdate"}},
		"too early":          {pod: Pod{Name: "web-2", Ready: after(1)}, losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 2)}, want: Finding{Rule: "ready-too-early", Path: main + ".readinessProbe"}},
		"no reason":          {pod: Pod{Name: "web-2", Ready: after(-50)}, losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 2)}, want: Finding{Rule: "unexplained"}},
		"long after":         {pod: stopped(1, 0), losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 20)}, want: Finding{Rule: "unexplained"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := of(t, tt.spec, tt.container)
			if tt.none {
				p.pods.ready = []readyAt{{after(-1), 0}}
			}
			p.pods.pods = []*Pod{&tt.pod}
			p.load.first = &load.Hello{}
			for _, l := range tt.losses {
				p.load.lost = append(p.load.lost, l.Loss)
			}
			r := p.report()
			if len(r.Findings) != 1 {
				t.Fatalf("%d findings, want one: %+v", len(r.Findings), r.Findings)
			}
			f := r.Findings[0]
			if got := (Finding{Rule: f.Rule, Path: f.Path, Value: f.Value, Want: f.Want}); got != tt.want {
				t.Errorf("found %+v\nwant  %+v", got, tt.want)
			}
			if f.Losses != len(tt.losses) || f.Object != "Deployment/web" {
				t.Errorf("%d losses of %s", f.Losses, f.Object)
			}
			for _, s := range tt.says {
				if !strings.Contains(f.Reason+f.Fix, s) {
					t.Errorf("it does not say %q:\n%s\n%s", s, f.Reason, f.Fix)
				}
			}
		})
	}
}

// Ten programs that stop badly, and what the judge says of each. What the client saw is often
// the same: how the container ended makes the difference, and no advice contradicts it.
func TestTenBadPrograms(t *testing.T) {
	const main = "spec.template.spec.containers[0]"
	// ended returns a pod whose container ended some seconds after its deletion.
	ended := func(name string, deleted, took float64, grace, code int, reason, said string) Pod {
		return Pod{
			Name: name, Ready: after(deleted - 60), Deleted: after(deleted), Unready: after(deleted + 0.1), Removed: after(deleted + 0.2),
			Ended: after(deleted + took), ExitCode: &code, Grace: grace, Reason: reason, Said: said,
		}
	}
	keptAt := func(at float64) lostRequest { return lost(load.Kept, load.Closed, true, 0, at) }
	for name, tt := range map[string]struct {
		grace     int64 // of the manifest; 0 for 30
		container string
		pods      []Pod
		losses    []lostRequest
		want      Finding // Rule, Path and Want
		says      []string
		never     []string
	}{
		"a grace that is too short": {
			grace:  5,
			pods:   []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", "draining"), ended("web-2", 30, 8.2, 65, 0, "Completed", "drained")},
			losses: []lostRequest{keptAt(5.2), lost(load.Kept, load.Cut, true, 3, 5.3), lost(load.Fresh, load.Refused, false, 0, 5.4)},
			want:   Finding{Rule: "grace-too-short", Path: "spec.template.spec.terminationGracePeriodSeconds", Want: "11"},
			says:   []string{"their grace of 5 s was over", "3 requests", "with a grace of 65 s pod web-2 ended by itself after 8.2s"},
			never:  []string{"preStop", "Connection: close"},
		},
		"a program that ignores SIGTERM": {
			grace:  5,
			pods:   []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", "serving"), ended("web-2", 30, 65.4, 65, 137, "Error", "serving")},
			losses: []lostRequest{keptAt(5.2), keptAt(95.2)},
			want:   Finding{Rule: "stop-signal-ignored"},
			says:   []string{"with a grace of 65 s pod web-2 did not end either", `"serving"`, "end at SIGTERM"},
			never:  []string{"set terminationGracePeriodSeconds", "preStop"},
		},
		"a shell as process 1": {
			grace:     5,
			container: `, "command": ["/bin/sh", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []lostRequest{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".command"},
			says:      []string{"exec"},
		},
		"a shell with options under an init": {
			grace:     5,
			container: `, "command": ["tini", "-s", "--", "bash", "-eo", "pipefail", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []lostRequest{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".command"},
			says:      []string{"exec"},
		},
		"a shell behind lifecycle-run": {
			grace:     5,
			container: `, "args": ["lifecycle-run", "--", "sh", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []lostRequest{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".args"},
			says:      []string{"exec"},
		},
		"a panic 20 s after each start": {
			pods: []Pod{
				{Name: "web-3", Ready: after(-40), Restarts: []Restart{{At: after(-20), ExitCode: 2}, {At: after(2), ExitCode: 2, Said: "panic: out of luck"}}},
				ended("web-1", 0, 6, 30, 0, "Completed", ""),
			},
			losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 2.1), keptAt(2.1), lost(load.Fresh, load.Refused, false, 0, 4)},
			want:   Finding{Rule: "container-ended"},
			says:   []string{"by itself 2 times", "exit status 2", "panic: out of luck"},
			never:  []string{"preStop"},
		},
		"no memory": {
			pods:   []Pod{{Name: "web-3", Ready: after(-40), Restarts: []Restart{{At: after(2), ExitCode: 137, Reason: "OOMKilled"}}}},
			losses: []lostRequest{keptAt(2.1)},
			want:   Finding{Rule: "container-ended", Path: main + ".resources.limits.memory"},
			says:   []string{"OOMKilled"},
		},
		"500 once in 300": {
			pods: []Pod{ended("web-1", 0, 6, 30, 0, "Completed", ""), ended("web-2", 22, 6, 30, 0, "Completed", "")},
			losses: []lostRequest{
				lost(load.Kept, load.Status, true, 0, -15), lost(load.Kept, load.Status, true, 0, 1), lost(load.Fresh, load.Status, false, 0, 8),
				lost(load.Kept, load.Status, true, 0, 17), lost(load.Kept, load.Status, true, 0, 31), lost(load.Kept, load.Status, true, 0, 70),
			},
			want:  Finding{Rule: "unexplained"},
			says:  []string{"6 requests, during stops no more often than at all other times"},
			never: []string{"preStop", "while it stops"},
		},
		"an end at SIGTERM": {
			pods:   []Pod{ended("web-1", 0, 0.3, 30, 143, "Error", "")},
			losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 0.4), lost(load.Fresh, load.Refused, false, 0, 1.4)},
			want:   Finding{Rule: "prestop-missing", Path: main + ".lifecycle.preStop", Want: "sleep: {seconds: 4}"},
			says:   []string{"ended 0.3s after the deletion, with exit status 143"},
		},
		"a main function that fails when its listener closes": {
			pods:   []Pod{ended("web-1", 0, 0.3, 30, 1, "Error", "http: Server closed")},
			losses: []lostRequest{lost(load.Kept, load.Cut, true, 1, 0.2), keptAt(0.3)},
			want:   Finding{Rule: "stop-failed"},
			says:   []string{"2 requests open", "exit status 1", "http: Server closed"},
			never:  []string{"preStop"},
		},
		"a window that the program does not read": {
			container: `, "env": [{"name": "DRAIN_DELAY", "value": "10"}]`,
			pods:      []Pod{ended("web-1", 0, 0.3, 30, 0, "Completed", "bye")},
			losses:    []lostRequest{lost(load.Fresh, load.Refused, false, 0, 0.5), lost(load.Fresh, load.Refused, false, 0, 1.5)},
			want:      Finding{Rule: "window-not-kept", Path: main + ".env[0].value"},
			says:      []string{"ended after 0.3s, within a window of 10s", "does not read DRAIN_DELAY", `"bye"`},
		},
		"a goodbye that is not said": {
			pods:   []Pod{ended("web-1", 0, 6, 30, 0, "Completed", "")},
			losses: []lostRequest{keptAt(6), keptAt(6.1)},
			want:   Finding{Rule: "close-not-announced"},
			says:   []string{"Connection: close", "exit status 0"},
			never:  []string{"set terminationGracePeriodSeconds"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := of(t, "", tt.container)
			if tt.grace > 0 {
				p.d.Spec.Template.Spec.TerminationGracePeriodSeconds = &tt.grace
			}
			f := onlyFinding(t, p, tt.pods, tt.losses)
			if f.Rule != tt.want.Rule || f.Path != tt.want.Path || f.Want != tt.want.Want || f.Losses != len(tt.losses) {
				t.Errorf("found %+v\nwant  %+v", f, tt.want)
			}
			for _, text := range tt.says {
				if !strings.Contains(f.Reason+f.Fix, text) {
					t.Errorf("it does not say %q:\n%s\n%s", text, f.Reason, f.Fix)
				}
			}
			for _, text := range tt.never {
				if strings.Contains(f.Reason+f.Fix, text) {
					t.Errorf("it says %q:\n%s\n%s", text, f.Reason, f.Fix)
				}
			}
		})
	}
}

// Losses that stops explain and chance does not stay with the stops, also when the service
// lost one at another time.
func TestOneStrayLossExplainsNothingElse(t *testing.T) {
	p := of(t, "", "")
	pod := stopped(0.3, 0)
	p.pods.pods = []*Pod{&pod}
	p.load.first = &load.Hello{}
	for _, at := range []float64{-10, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2} {
		p.load.lost = append(p.load.lost, lost(load.Fresh, load.Refused, false, 0, at).Loss)
	}
	r := p.report()
	if len(r.Findings) != 2 || r.Findings[0].Rule != "prestop-missing" || r.Findings[0].Losses != 9 || r.Findings[1].Losses != 1 {
		t.Errorf("%+v", r.Findings)
	}
}

// Of pods that stop at the same time, the loss belongs to the one that ended latest
// before it.
func TestTheLatestEndIsTheCause(t *testing.T) {
	old, next := stopped(6, 0), stopped(6, 0)
	next.Name, next.Deleted, next.Ended = "web-2", after(3), after(9)
	for at, want := range map[float64]string{1: "web-1", 6.5: "web-1", 9.5: "web-2"} {
		pod, _ := attribute(lost(load.Fresh, load.Refused, false, 0, at), []Pod{old, next}, false)
		if pod == nil || pod.Name != want {
			t.Errorf("at T0+%v: %+v, want %s", at, pod, want)
		}
	}
}

// A pod that has just become ready is suspected when no pod ended lately.
func TestAYoungPodIsSuspected(t *testing.T) {
	old, next := stopped(1, 0), Pod{Name: "web-2", Ready: after(8)}
	for at, want := range map[float64]string{5: arrival, 8.2: tooEarly, 14: arrival, 17: unknown} {
		if _, cause := attribute(lost(load.Fresh, load.Refused, false, 0, at), []Pod{old, next}, false); cause != want {
			t.Errorf("at T0+%v: %s, want %s", at, cause, want)
		}
	}
}

// The clock of the load may be wrong: its records say by how much.
func TestTheLoadsClockIsNotTrusted(t *testing.T) {
	a := newAccount()
	fast := time.Now().Add(time.Hour)
	a.take(load.Record{Seq: 1, At: fast, Hello: &load.Hello{}})
	a.take(load.Record{Seq: 2, At: fast, Loss: &load.Loss{Sent: fast, Lost: fast}})
	a.take(load.Record{Seq: 2, At: fast, Loss: &load.Loss{Sent: fast, Lost: fast}}) // read again after a broken connection
	all := a.losses()
	if len(all) != 1 || time.Since(all[0].at()).Abs() > time.Minute {
		t.Errorf("%v", all)
	}
}

func TestASilentLoadIsExplained(t *testing.T) {
	a := newAccount()
	a.fault = errors.New("no such host")
	a.received = time.Now().Add(-2 * maxWait)
	_, hello := a.hello(t.Context())
	for _, err := range []error{hello, a.drained(t.Context(), time.Now()), (&proof{load: a, opts: Options{Now: func(string) {}}}).rest(t.Context(), time.Millisecond)} {
		var e *cli.Failure
		if !errors.As(err, &e) || !strings.Contains(e.Error(), "has not reported for 1m0s") || !strings.Contains(strings.Join(e.Hints, ""), "no such host") {
			t.Errorf("%v", err)
		}
	}
}

// The timeline is what the watches say, in any order.
func TestTimeline(t *testing.T) {
	tl := &timeline{container: "main", slices: make(map[string]map[types.UID]bool)}
	var pod corev1.Pod
	var endpoint discoveryv1.EndpointSlice
	decode := func(text string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	slice := func(name, endpoints string) {
		t.Helper()
		endpoint = discoveryv1.EndpointSlice{}
		decode(`{"metadata": {"name": "`+name+`"}, "endpoints": [`+endpoints+`]}`, &endpoint)
		tl.takeSlice("MODIFIED", endpoint)
	}
	const ready, unready = `{"conditions": {"ready": true}, "targetRef": {"uid": "1"}}`, `{"conditions": {"ready": false}, "targetRef": {"uid": "1"}}`
	decode(`{"metadata": {"name": "web-1", "uid": "1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, &pod)
	tl.takePod("ADDED", pod)
	slice("a", ready)
	if tl.none(time.Now()) {
		t.Error("an endpoint is ready")
	}
	slice("b", ready) // it moves to another slice
	slice("a", "")
	if p := tl.copies()[0]; !p.Unready.IsZero() || !p.Removed.IsZero() || p.Ready.IsZero() {
		t.Errorf("it is in another slice: %+v", p)
	}
	slice("b", unready)
	if p := tl.copies()[0]; p.Unready.IsZero() || !p.Removed.IsZero() {
		t.Errorf("it is not ready, and listed: %+v", p)
	}
	if !tl.none(time.Now()) {
		t.Error("no endpoint is ready")
	}
	decode(`{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"containerStatuses": [{"name": "sidecar", "state": {"terminated": {"exitCode": 1}}}, {"name": "main", "state": {"terminated": {"exitCode": 137}}}]}}`, &pod)
	tl.takePod("MODIFIED", pod)
	tl.takeSlice("DELETED", endpoint)
	if p := tl.copies()[0]; p.Removed.IsZero() || p.Deleted.IsZero() || p.ExitCode == nil || *p.ExitCode != 137 {
		t.Errorf("%+v", p)
	}
}

// An end of a container without a deletion is a restart, once, with what the container said.
// What ended before the proof is none.
func TestRestartsAreSeen(t *testing.T) {
	tl := &timeline{container: "main", slices: map[string]map[types.UID]bool{}}
	var asked []string
	tl.ended = func(pod string, isOver bool, take func(string)) {
		asked = append(asked, fmt.Sprint(pod, isOver))
		take("last words")
	}
	see := func(meta, status string) {
		t.Helper()
		var pod corev1.Pod
		text := `{"metadata": {"name": "web-1", "uid": "1"` + meta + `}, "status": {"containerStatuses": [{"name": "main", ` + status + `}]}}`
		if err := json.Unmarshal([]byte(text), &pod); err != nil {
			t.Fatal(err)
		}
		tl.takePod("MODIFIED", pod)
	}
	end := func(id, rest string) string {
		return `{"terminated": {"containerID": "` + id + `", ` + rest + `}}`
	}
	see("", `"state": {"running": {}}, "lastState": `+end("0", `"exitCode": 1`))
	see("", `"state": `+end("1", `"exitCode": 2`))
	see("", `"state": {"waiting": {}}, "lastState": `+end("1", `"exitCode": 2`))
	see("", `"state": {"running": {}}, "lastState": `+end("2", `"exitCode": 137, "reason": "OOMKilled", "message": "one\ntwo\n"`))
	see(`, "deletionTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 7`, `"state": {"running": {}}, "lastState": `+end("2", `"exitCode": 137`))
	see(`, "deletionTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 7`, `"state": `+end("3", `"exitCode": 1, "reason": "Error"`))
	pod := tl.copies()[0]
	if len(pod.Restarts) != 2 || pod.Restarts[0].ExitCode != 2 || pod.Restarts[0].Said != "last words" || pod.Restarts[1].Reason != outOfMemory || pod.Restarts[1].Said != "two" {
		t.Errorf("the restarts are %+v", pod.Restarts)
	}
	if pod.Grace != 7 || pod.ExitCode == nil || *pod.ExitCode != 1 || pod.Said != "last words" || !pod.hasFailed() || pod.wasKilled() {
		t.Errorf("%+v", pod)
	}
	if got := strings.Join(asked, " "); got != "web-1true web-1false" {
		t.Errorf("it asked for the logs of %s", got)
	}
}

// The last line of a container's log is read while it stops. A log that is gone is no evidence.
func TestTheLastLineIsRead(t *testing.T) {
	f := newFake(t)
	p := of(t, "", "")
	p.pods.container = "main"
	var started sync.WaitGroup
	ended := p.listen(t.Context(), &started)
	var said string
	f.set("logs", "draining\n\x1b[1mbye\x1b[0m\n\n")
	ended("web-1", false, func(line string) { said = line })
	started.Wait()
	if said != "\x1b[1mbye\x1b[0m" || !strings.Contains(f.calls(), "logs --container main --tail=1 --follow=true --previous=false web-1") {
		t.Errorf("it read %q with\n%s", said, f.calls())
	}
	f.set("logs", "")
	ended("web-1", true, func(line string) { t.Errorf("it read %q", line) })
	started.Wait()
	if !strings.Contains(f.calls(), "--follow=false --previous=true") {
		t.Errorf("the log of the container before was not read:\n%s", f.calls())
	}
}

// When pods were killed, the one that is deleted has more time, which shows whether the
// program ends at all.
func TestAPodThatIsDeletedHasTimeToEnd(t *testing.T) {
	for grace, want := range map[int]string{30: "--grace-period=90", 40: ""} { // 40 s were not over
		f := newFake(t)
		f.set("get-pods", `{"items": [{"metadata": {"name": "web-9"}}]}`)
		p := of(t, "", "")
		p.d.resource, p.k.limit = "deployments.apps", time.Minute
		pod := stopped(30.2, 137)
		pod.Grace = grace
		p.pods.pods = []*Pod{&pod}
		p.opts.Step, p.opts.Now = func(string) {}, func(string) {}
		_ = p.deletePod(t.Context()) // the fake keeps the pod
		calls := f.calls()
		if !strings.Contains(calls, "delete pod web-9 --wait=false") || strings.Contains(calls, "--grace-period") != (want != "") || !strings.Contains(calls, want) {
			t.Errorf("a grace of %d s: kubectl was called with\n%s", grace, calls)
		}
	}
}

// A StatefulSet and a DaemonSet have rolled when their own numbers say so.
func TestOtherWorkloads(t *testing.T) {
	for resource, text := range map[string]string{
		"statefulsets.apps": `{"metadata": {"name": "db", "generation": 2}, "spec": {"replicas": 3},
			"status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3}}`,
		"daemonsets.apps": `{"metadata": {"name": "db", "generation": 2}, "spec": {},
			"status": {"observedGeneration": 2, "desiredNumberScheduled": 3, "currentNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3}}`,
	} {
		for from, has := range map[string]bool{"": true, `"observedGeneration": 2`: false, `"updated`: false, `vailable": 3`: false, `vailableReplicas": 3`: false} {
			if from != "" && !strings.Contains(text, from) {
				continue
			}
			d := &workload{resource: resource}
			if err := json.Unmarshal([]byte(strings.Replace(text, from, strings.NewReplacer("2", "1", "3", "2", "updated", "other").Replace(from), 1)), d); err != nil {
				t.Fatal(err)
			}
			if d.replicas() != 3 || d.hasRolled(3) != has {
				t.Errorf("%s with another %s: %d replicas, rolled %v", d, from, d.replicas(), d.hasRolled(3))
			}
		}
	}
	p := of(t, "", "")
	p.d.resource = "statefulsets.apps"
	headless := *p.svc
	headless.Name, headless.Spec.ClusterIP = "web-peers", "None"
	if svc, err := choose([]service{headless, *p.svc}, "", p.d); err != nil || svc.Name != "web" {
		t.Errorf("of a headless and a balancing Service it takes %v: %v", svc, err)
	}
	if p.d.String() != "statefulset/web" || p.d.kind() != "StatefulSet" {
		t.Errorf("it is %s", p.d)
	}
	daemon := of(t, "", "")
	daemon.d.resource, daemon.d.Status.DesiredNumberScheduled = "daemonsets.apps", 1
	if f := daemon.noEndpoint("1 request"); f.Path != "spec.updateStrategy.rollingUpdate" {
		t.Errorf("%+v", f)
	}
}

// lifecycle-run with its proxy is for programs that do not say goodbye, and for no other.
func TestProxyIsAdvised(t *testing.T) {
	closed := []lostRequest{lost(load.Kept, load.Closed, true, 0, 6), lost(load.Kept, load.Closed, true, 0, 6.1)}
	never := []lostRequest{lost(load.Kept, load.Closed, true, 0, 30.2), lost(load.Kept, load.Closed, true, 0, 90.2)}
	const advice = "lifecycle-run with --proxy in front of it"
	wrapper := `, "command": ["/lifecycle-run"], "args": ["-config=/etc/service/lifecycle-run.yaml", "--", "app", "--proxy=x"]`
	ignores := stopped(30.3, 137)
	still := stopped(90.3, 137)
	still.Name, still.Grace = "web-2", 90
	memory := Pod{Name: "web-3", Ready: after(-40), Restarts: []Restart{{At: after(2), ExitCode: 137, Reason: outOfMemory}}}
	for name, tt := range map[string]struct {
		container string
		port      string // the name of the Service's port
		pods      []Pod
		losses    []lostRequest
		says      string // "" for no advice
	}{
		"a foreign program":         {losses: closed, says: advice},
		"one that cuts requests":    {losses: []lostRequest{lost(load.Kept, load.Cut, true, 1, 6)}, says: advice},
		"one that fails":            {pods: []Pod{stopped(0.3, 1)}, losses: []lostRequest{lost(load.Kept, load.Cut, true, 1, 0.2)}, says: advice},
		"one that ignores SIGTERM":  {pods: []Pod{ignores, still}, losses: never, says: "such as lifecycle-run with --proxy"},
		"behind lifecycle-run":      {container: wrapper, losses: closed, says: "in its place with --proxy (config.proxy of the chart), unless"},
		"behind lifecyclectl run":   {container: `, "command": ["lifecyclectl", "run", "--", "app"]`, losses: closed, says: "unless that is set"},
		"behind an init":            {container: `, "command": ["tini", "--", "/lifecycle-run", "--proxy=http://127.0.0.1:1", "--", "app"]`, losses: closed},
		"behind the proxy":          {container: `, "command": ["lifecycle-run", "--proxy=http://127.0.0.1:1", "--", "app"]`, losses: closed},
		"by a variable":             {container: `, "env": [{"name": "LIFECYCLE_RUN_PROXY", "value": "http://127.0.0.1:1"}]`, losses: closed},
		"an App":                    {container: `, "env": [{"name": "WEB_LIFECYCLE_DRAIN_INTERVAL", "value": "5s"}]`, losses: closed},
		"TLS":                       {port: "https", losses: closed},
		"an answer of 500":          {losses: []lostRequest{lost(load.Kept, load.Status, true, 0, 2)}},
		"new connections":           {pods: []Pod{stopped(0.3, 0)}, losses: []lostRequest{lost(load.Fresh, load.Refused, false, 0, 0.4)}},
		"an end for lack of memory": {pods: []Pod{memory}, losses: []lostRequest{lost(load.Kept, load.Closed, true, 0, 2.1)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := of(t, "", tt.container)
			if tt.port != "" {
				p.port.Name = tt.port
			}
			if tt.pods == nil {
				tt.pods = []Pod{stopped(6, 0)}
			}
			fix := onlyFinding(t, p, tt.pods, tt.losses).Fix
			if !strings.Contains(fix, tt.says) || tt.says == "" && strings.Contains(fix, "--proxy") {
				t.Errorf("the advice should have %q:\n%s", tt.says, fix)
			}
			if tt.says != "" && strings.Contains(fix, "no line of the manifest") {
				t.Errorf("it contradicts itself: %s", fix)
			}
		})
	}
}

// What a server answered does not steer the terminal.
func TestReportIsPrintable(t *testing.T) {
	r := Report{Lost: 1, Losses: []Loss{{Pod: "web-1", Kind: "kept", How: "malformed", Why: "malformed header \x1b[2J"}}}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), `malformed header \u001b[2J`+"\n") {
		t.Errorf("%q", text.String())
	}
}

// A container that SIGKILL ended is told, also when no request was lost.
func TestKilledContainersAreTold(t *testing.T) {
	p := of(t, "", "")
	killed, before, memory, well := stopped(30.3, 137), stopped(12, 137), stopped(3, 137), stopped(6, 0)
	before.Name, memory.Name, well.Name = "web-2", "web-3", "web-4"
	memory.Reason = outOfMemory
	p.pods.pods = []*Pod{&killed, &before, &memory, &well, {Name: "web-5", Ready: after(1)}}
	p.load.first = &load.Hello{}
	r := p.report()
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := "killed: 3 of 4 stopped containers ended by SIGKILL, exit status 137: pod web-1 T0+30.3s, at the end of its grace of 30 s; " +
		"pod web-2 T0+12.0s, before the end of its grace of 30 s; pod web-3 T0+3.0s, before the end of its grace of 30 s, OOMKilled\n"
	if !strings.Contains(text.String(), want) || !slices.Equal(r.Killed, []string{"web-1", "web-2", "web-3"}) {
		t.Errorf("want %q, have %q and\n%s", want, r.Killed, text.String())
	}
	for i := range 7 {
		pod := killed
		pod.Name = fmt.Sprintf("more-%d", i)
		p.pods.pods = append(p.pods.pods, &pod)
	}
	text.Reset()
	if err := p.report().WriteText(&text); err != nil || !strings.Contains(text.String(), "; and 5 more\n") {
		t.Errorf("%v, and it names all:\n%s", err, text.String())
	}
}

func TestReports(t *testing.T) {
	p := of(t, "", "")
	pod := stopped(0.3, 0)
	p.pods.pods = []*Pod{&pod}
	p.load.first = &load.Hello{Skipped: map[string]string{load.Stream: "not asked for"}}
	p.load.tick.Counts = map[string]load.Count{load.Fresh: {Sent: 10, Answered: 9, Lost: 1}}
	p.load.lost = []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.2).Loss}
	r := p.report()
	var text, asJSON bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"HTTP/1.1 new           10 sent       9 answered      1 lost", "stream of events   not asked for", "rolling restart", "lost: 1 of 10 requests",
		"pod web-1: not ready T0+0.1s, out of the endpoints T0+0.3s, container ended T0+0.3s, exit status 0", "1 HTTP/1.1 new       refused      T0+0.2s to T0+0.2s  why",
		"error: prestop-missing\n  Deployment/web, spec.template.spec.containers[0].lifecycle.preStop\n", "fix: add",
	} {
		if !strings.Contains(text.String(), s) {
			t.Errorf("the text does not have %q:\n%s", s, text.String())
		}
	}
	if err := r.WriteJSON(&asJSON); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Losses []struct {
			Step, Pod, Cause                                    string
			AfterDeletion, AfterUnready, AfterRemoved, AfterEnd float64
		}
	}
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || len(back.Losses) != 1 {
		t.Fatalf("%v\n%s", err, asJSON.String())
	}
	if l := back.Losses[0]; l.Step != "rolling restart" || l.Pod != "web-1" || l.Cause != "arrival" || l.AfterDeletion != 0.2 || l.AfterUnready != 0.1 || l.AfterRemoved != -0.1 || l.AfterEnd != -0.1 {
		t.Errorf("%+v", l)
	}
}
