package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func after(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// lost makes a loss that was noticed at seconds after the deletion of web-1.
func lost(kind string, how load.How, kept bool, waited, at float64) load.Loss {
	return load.Loss{Kind: kind, How: how, Kept: kept, Sent: after(at - waited), Lost: after(at), Why: "why"}
}

// stopped returns a pod that was deleted at T0 and whose container ended this many
// seconds later.
func stopped(ended float64, code int) Pod {
	return Pod{Name: "web-1", Ready: after(-60), Deleted: t0, Ended: after(ended), ExitCode: &code, Grace: 30}
}

// onlyFinding returns the one finding about these ends and losses.
func onlyFinding(t *testing.T, p *proof, pods []Pod, losses []load.Loss) Finding {
	t.Helper()
	for _, pod := range pods {
		p.pods.pods = append(p.pods.pods, &pod)
	}
	p.load.first = &load.Hello{}
	p.load.lost = losses
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
	return &proof{d: d, svc: svc, k: &kubectl{namespace: "shop"}, port: svc.Spec.Ports[0], pods: new(timeline), load: newAccount(),
		steps: []Step{{Name: "rolling restart", Began: after(-10), Ended: after(60)}}, began: after(-20), ended: after(80)}
}

// Each loss has one cause, and each cause names the line that prevents it.
func TestTheRightNumberIsNamed(t *testing.T) {
	const main = "spec.template.spec.containers[0]"
	sleep := func(command string) string { return `, "lifecycle": {"preStop": ` + command + `}` }
	late := []load.Loss{
		lost(load.Fresh, load.Refused, false, 0, 1.2),
		lost(load.Fresh, load.Unreachable, false, 3, 7.5),
		lost(load.Kept, load.Refused, false, 0, 3.8),
	}
	atOnce := append([]load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.2)}, late...)
	for name, tt := range map[string]struct {
		spec, container string
		pod             Pod
		losses          []load.Loss
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
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 60.2)},
			want:   Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.exec.command", Value: "60", Want: "63"}},
		"two sleeps are a sum": {container: sleep(`{"exec": {"command": ["sh", "-c", "sleep 1 && sleep 1.5s"]}}`), pod: stopped(2.8, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop.exec.command", Value: "2", Want: "7"}},
		"a hook of unknown time": {container: sleep(`{"httpGet": {"path": "/bye"}}`), pod: stopped(1.3, 0), losses: late,
			want: Finding{Rule: "prestop-too-short", Path: main + ".lifecycle.preStop", Want: "7"}},
		"an App says so itself": {
			pod: Pod{
				Name:     "web-1",
				Ready:    after(-60),
				Deleted:  after(0),
				Ended:    after(2.3),
				ExitCode: new(int),
				Grace:    30,
				Said:     "web: stopped (draining 1.1s, stopping 2ms)",
			},
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.4), lost(load.Fresh, load.Refused, false, 0, 4.2)},
			want:   Finding{Rule: "drain-window-too-short", Want: "7s"}, says: []string{"is an App", "draining 1.1s", "lifecycle.drain_interval"},
		},
		"nowhere in the manifest": {pod: stopped(2.3, 0), losses: late,
			want: Finding{Rule: "drain-window-too-short", Want: "7s"}, says: []string{"goes on for about 1.2s after SIGTERM", "lifecycle.drain_interval", main + ".lifecycle.preStop.sleep.seconds: 7"}},
		"killed": {spec: "", pod: stopped(30.4, 137), losses: []load.Loss{lost(load.Kept, load.Closed, true, 12, 30.3)},
			want: Finding{Rule: "grace-too-short", Path: "spec.template.spec.terminationGracePeriodSeconds", Value: "30", Want: "60"}},
		"cut": {pod: stopped(6, 0), losses: []load.Loss{lost(load.Kept, load.Cut, true, 1, 6)}, want: Finding{Rule: "request-cut"}},
		"closed while idle": {pod: stopped(0.3, 0), losses: []load.Loss{lost(load.Kept, load.Closed, true, 0, 0.4), lost(load.HTTP2, load.Closed, true, 0, 0.4)},
			want: Finding{Rule: "close-not-announced"}, says: []string{"2 requests", "Connection: close"}},
		"one step of GOAWAY": {
			pod:    stopped(6, 0),
			losses: []load.Loss{lost(load.HTTP2, load.GoAway, true, 0, 1.1)},
			want:   Finding{Rule: "goaway-too-soon"},
			says:   []string{"1 request on HTTP/2", "2^31-1"},
		},
		"a stream": {
			pod:    stopped(6, 0),
			losses: []load.Loss{lost(load.Stream, load.Cut, false, 40, 6)},
			want:   Finding{Rule: "stream-cut"},
			says:   []string{"cut 1 stream"},
		},
		"503": {
			pod:    stopped(6, 0),
			losses: []load.Loss{lost(load.Kept, load.Status, true, 0, 2)},
			want:   Finding{Rule: "status"},
			says:   []string{"2.0s"},
		},
		"one pod": {
			none:   true,
			pod:    stopped(6, 0),
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 2)},
			want:   Finding{Rule: "no-endpoint", Path: "spec.strategy.rollingUpdate.maxUnavailable", Want: "0"},
		},
		"Recreate": {
			spec:   `, "strategy": {"type": "Recreate"}`,
			none:   true,
			pod:    stopped(6, 0),
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 2)},
			want:   Finding{Rule: "no-endpoint", Path: "spec.strategy.type", Value: "Recreate", Want: "RollingUpdate"},
		},
		"too early": {
			pod:    Pod{Name: "web-2", Ready: after(1)},
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 2)},
			want:   Finding{Rule: "ready-too-early", Path: main + ".readinessProbe"},
		},
		"no reason": {
			pod:    Pod{Name: "web-2", Ready: after(-50)},
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 2)},
			want:   Finding{Rule: "unexplained"},
		},
		"long after": {pod: stopped(1, 0), losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 20)}, want: Finding{Rule: "unexplained"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := of(t, tt.spec, tt.container)
			if tt.none {
				p.pods.ready = []readyAt{{after(-1), 0}}
			}
			p.pods.pods = []*Pod{&tt.pod}
			p.load.first = &load.Hello{}
			p.load.lost = tt.losses
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
			Name: name, Ready: after(deleted - 60), Deleted: after(deleted),
			Ended: after(deleted + took), ExitCode: &code, Grace: grace, Reason: reason, Said: said,
		}
	}
	keptAt := func(at float64) load.Loss { return lost(load.Kept, load.Closed, true, 0, at) }
	for name, tt := range map[string]struct {
		grace     int64 // of the manifest; 0 for 30
		container string
		pods      []Pod
		losses    []load.Loss
		want      Finding // Rule, Path and Want
		says      []string
		never     []string
	}{
		"a grace that is too short": {
			grace:  5,
			pods:   []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", "draining"), ended("web-2", 30, 8.2, 65, 0, "Completed", "drained")},
			losses: []load.Loss{keptAt(5.2), lost(load.Kept, load.Cut, true, 3, 5.3), lost(load.Fresh, load.Refused, false, 0, 5.4)},
			want:   Finding{Rule: "grace-too-short", Path: "spec.template.spec.terminationGracePeriodSeconds", Want: "11"},
			says:   []string{"their grace of 5 s was over", "3 requests", "with a grace of 65 s pod web-2 ended by itself after 8.2s"},
			never:  []string{"preStop", "Connection: close"},
		},
		"a program that ignores SIGTERM": {
			grace:  5,
			pods:   []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", "serving"), ended("web-2", 30, 65.4, 65, 137, "Error", "serving")},
			losses: []load.Loss{keptAt(5.2), keptAt(95.2)},
			want:   Finding{Rule: "stop-signal-ignored"},
			says:   []string{"with a grace of 65 s pod web-2 did not end either", `"serving"`, "end at SIGTERM"},
			never:  []string{"set terminationGracePeriodSeconds", "preStop"},
		},
		"a shell as process 1": {
			grace:     5,
			container: `, "command": ["/bin/sh", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []load.Loss{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".command"},
			says:      []string{"exec"},
		},
		"a shell with options under an init": {
			grace:     5,
			container: `, "command": ["tini", "-s", "--", "bash", "-eo", "pipefail", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []load.Loss{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".command"},
			says:      []string{"exec"},
		},
		"a shell behind lifecycle-run": {
			grace:     5,
			container: `, "args": ["lifecycle-run", "--", "sh", "-c", "python3 app.py; true"]`,
			pods:      []Pod{ended("web-1", 0, 5.3, 5, 137, "Error", ""), ended("web-2", 30, 65.4, 65, 137, "Error", "")},
			losses:    []load.Loss{keptAt(5.2)},
			want:      Finding{Rule: "stop-signal-ignored", Path: main + ".args"},
			says:      []string{"exec"},
		},
		"a panic 20 s after each start": {
			pods: []Pod{
				{Name: "web-3", Ready: after(-40), Restarts: []Restart{{At: after(-20), ExitCode: 2}, {At: after(2), ExitCode: 2, Said: "panic: out of luck"}}},
				ended("web-1", 0, 6, 30, 0, "Completed", ""),
			},
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 2.1), keptAt(2.1), lost(load.Fresh, load.Refused, false, 0, 4)},
			want:   Finding{Rule: "container-ended"},
			says:   []string{"by itself 2 times", "exit status 2", "panic: out of luck"},
			never:  []string{"preStop"},
		},
		"no memory": {
			pods:   []Pod{{Name: "web-3", Ready: after(-40), Restarts: []Restart{{At: after(2), ExitCode: 137, Reason: "OOMKilled"}}}},
			losses: []load.Loss{keptAt(2.1)},
			want:   Finding{Rule: "container-ended", Path: main + ".resources.limits.memory"},
			says:   []string{"OOMKilled"},
		},
		"500 once in 300": {
			pods: []Pod{ended("web-1", 0, 6, 30, 0, "Completed", ""), ended("web-2", 22, 6, 30, 0, "Completed", "")},
			losses: []load.Loss{
				lost(load.Kept, load.Status, true, 0, -15), lost(load.Kept, load.Status, true, 0, 1), lost(load.Fresh, load.Status, false, 0, 8),
				lost(load.Kept, load.Status, true, 0, 17), lost(load.Kept, load.Status, true, 0, 31), lost(load.Kept, load.Status, true, 0, 70),
			},
			want:  Finding{Rule: "unexplained"},
			says:  []string{"6 requests, during stops no more often than at all other times"},
			never: []string{"preStop", "while it stops"},
		},
		"an end at SIGTERM": {
			pods:   []Pod{ended("web-1", 0, 0.3, 30, 143, "Error", "")},
			losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.4), lost(load.Fresh, load.Refused, false, 0, 1.4)},
			want:   Finding{Rule: "prestop-missing", Path: main + ".lifecycle.preStop", Want: "sleep: {seconds: 4}"},
			says:   []string{"ended 0.3s after the deletion, with exit status 143"},
		},
		"a main function that fails when its listener closes": {
			pods:   []Pod{ended("web-1", 0, 0.3, 30, 1, "Error", "http: Server closed")},
			losses: []load.Loss{lost(load.Kept, load.Cut, true, 1, 0.2), keptAt(0.3)},
			want:   Finding{Rule: "stop-failed"},
			says:   []string{"2 requests open", "exit status 1", "http: Server closed"},
			never:  []string{"preStop"},
		},
		"a hook whose container ends before it": {
			container: `, "lifecycle": {"preStop": {"sleep": {"seconds": 10}}}`,
			pods:      []Pod{ended("web-1", 0, 0.3, 30, 0, "Completed", "bye")},
			losses:    []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.5), lost(load.Fresh, load.Refused, false, 0, 1.5)},
			want:      Finding{Rule: "window-not-kept", Path: main + ".lifecycle.preStop.sleep.seconds"},
			says:      []string{"ended after 0.3s, within a hook of 10s", `"bye"`},
		},
		"a goodbye that is not said": {
			pods:   []Pod{ended("web-1", 0, 6, 30, 0, "Completed", "")},
			losses: []load.Loss{keptAt(6), keptAt(6.1)},
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
		p.load.lost = append(p.load.lost, lost(load.Fresh, load.Refused, false, 0, at))
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
	take := func(r load.Record) {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		a.take(line)
	}
	take(load.Record{Seq: 1, At: fast, Hello: &load.Hello{}})
	take(load.Record{Seq: 2, At: fast, Loss: &load.Loss{Sent: fast, Lost: fast}})
	a.take([]byte(`{"seq": 3, "at`))                                              // a connection broke
	take(load.Record{Seq: 2, At: fast, Loss: &load.Loss{Sent: fast, Lost: fast}}) // and it is read again
	all := a.losses()
	if len(all) != 1 || time.Since(all[0].At()).Abs() > time.Minute {
		t.Errorf("%v", all)
	}
}

func TestASilentLoadIsExplained(t *testing.T) {
	a := newAccount()
	a.fault = errors.New("no such host")
	a.received = time.Now().Add(-2 * maxWait)
	_, hello := a.hello(t.Context())
	reached := a.reached(t.Context(), time.Now())
	p := &proof{load: a, opts: Options{Now: func(string) {}}}
	for _, err := range []error{hello, reached, p.rest(t.Context(), time.Millisecond)} {
		var e *cli.Failure
		if !errors.As(err, &e) || !strings.Contains(e.Error(), "has not reported for 1m0s") || !strings.Contains(strings.Join(e.Hints, ""), "no such host") {
			t.Errorf("%v", err)
		}
	}
}

// The timeline is what the watch says.
func TestTimeline(t *testing.T) {
	tl := &timeline{container: "main"}
	see := func(event, meta, status string) {
		t.Helper()
		var pod corev1.Pod
		if err := json.Unmarshal([]byte(`{"metadata": {"name": "web-1", "uid": "1"`+meta+`}, "status": {`+status+`}}`), &pod); err != nil {
			t.Fatal(err)
		}
		tl.take(event, pod)
	}
	const ready = `"conditions": [{"type": "Ready", "status": "True"}]`
	see("ADDED", "", ready)
	if p := tl.copies()[0]; p.Ready.IsZero() || tl.none(time.Now()) {
		t.Errorf("a pod is ready: %+v", p)
	}
	see("MODIFIED", "", "")
	if !tl.none(time.Now()) {
		t.Error("no pod is ready")
	}
	see("MODIFIED", "", ready)
	const deleted = `, "deletionTimestamp": "2026-01-02T03:04:05Z"`
	see("MODIFIED", deleted, ready+`, "containerStatuses": [{"name": "sidecar", "state": {"terminated": {"exitCode": 1}}}, {"name": "main", "state": {"terminated": {"exitCode": 137}}}]`)
	if p := tl.copies()[0]; p.Deleted.IsZero() || p.ExitCode == nil || *p.ExitCode != 137 || !tl.none(time.Now()) {
		t.Errorf("its only pod is deleted: %+v", p)
	}
}

// An end of a container without a deletion is a restart, once, with what the container said.
// What ended before the proof is none.
func TestRestartsAreSeen(t *testing.T) {
	tl := &timeline{container: "main"}
	var logs []string
	see := func(meta, status string) {
		t.Helper()
		var pod corev1.Pod
		text := `{"metadata": {"name": "web-1", "uid": "1"` + meta + `}, "status": {"containerStatuses": [{"name": "main", ` + status + `}]}}`
		if err := json.Unmarshal([]byte(text), &pod); err != nil {
			t.Fatal(err)
		}
		for _, e := range tl.take("MODIFIED", pod) {
			logs = append(logs, fmt.Sprint(e.restart, e.log))
			tl.hear(e, "last words")
		}
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
	if want := []string{"0", "1--previous", "-1--follow"}; !slices.Equal(logs, want) {
		t.Errorf("it reads the logs %q, want %q", logs, want)
	}
}

// The last line of a container's log is read while it stops. A log that is gone is no evidence.
func TestTheLastLineIsRead(t *testing.T) {
	f := newFake(t)
	k := of(t, "", "").k
	f.set("logs", "draining\n\x1b[1mbye\x1b[0m\n\n")
	if said := k.lastLine(t.Context(), "web-1", "main", "--follow"); said != "\x1b[1mbye\x1b[0m" {
		t.Errorf("it read %q", said)
	}
	if !strings.Contains(f.calls(), "logs --container main --tail=1 web-1 --follow") {
		t.Errorf("it called\n%s", f.calls())
	}
	f.set("logs", "")
	if said := k.lastLine(t.Context(), "web-1", "main", "--previous"); said != "" {
		t.Errorf("it read %q", said)
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

// lifecycle-run with its proxy says goodbye in the place of a program.
func TestProxyIsAdvised(t *testing.T) {
	closed := []load.Loss{lost(load.Kept, load.Closed, true, 0, 6), lost(load.Kept, load.Closed, true, 0, 6.1)}
	never := []load.Loss{lost(load.Kept, load.Closed, true, 0, 30.2), lost(load.Kept, load.Closed, true, 0, 90.2)}
	ignores := stopped(30.3, 137)
	still := stopped(90.3, 137)
	still.Name, still.Grace = "web-2", 90
	for name, tt := range map[string]struct {
		port      string // the name of the Service's port
		pods      []Pod
		losses    []load.Loss
		isAdvised bool
	}{
		"a program that closes":    {losses: closed, isAdvised: true},
		"one that cuts requests":   {losses: []load.Loss{lost(load.Kept, load.Cut, true, 1, 6)}, isAdvised: true},
		"one that fails":           {pods: []Pod{stopped(0.3, 1)}, losses: []load.Loss{lost(load.Kept, load.Cut, true, 1, 0.2)}, isAdvised: true},
		"one that ignores SIGTERM": {pods: []Pod{ignores, still}, losses: never, isAdvised: true},
		"TLS":                      {port: "https", losses: closed},
		"an answer of 500":         {losses: []load.Loss{lost(load.Kept, load.Status, true, 0, 2)}},
		"new connections":          {pods: []Pod{stopped(0.3, 0)}, losses: []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.4)}},
	} {
		t.Run(name, func(t *testing.T) {
			p := of(t, "", "")
			p.port.Name = tt.port
			if tt.pods == nil {
				tt.pods = []Pod{stopped(6, 0)}
			}
			if fix := onlyFinding(t, p, tt.pods, tt.losses).Fix; strings.Contains(fix, "lifecycle-run with --proxy in front of it") != tt.isAdvised {
				t.Errorf("the fix is: %s", fix)
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
	want := "killed: 3 ended by SIGKILL, exit status 137\n  pod web-1 T0+30.3s, at the end of its grace of 30 s \n" +
		"  pod web-2 T0+12.0s, before the end of its grace of 30 s \n  pod web-3 T0+3.0s, before the end of its grace of 30 s OOMKilled\n"
	if !strings.Contains(text.String(), want) || !slices.Equal(r.Killed, []string{"web-1", "web-2", "web-3"}) {
		t.Errorf("want %q, have %q and\n%s", want, r.Killed, text.String())
	}
}

func TestReports(t *testing.T) {
	p := of(t, "", "")
	pod := stopped(0.3, 0)
	p.pods.pods = []*Pod{&pod}
	p.load.first = &load.Hello{Skipped: map[string]string{load.Stream: "not asked for"}}
	p.load.tick.Counts = map[string]load.Count{load.Fresh: {Sent: 10, Answered: 9, Lost: 1}}
	p.load.lost = []load.Loss{lost(load.Fresh, load.Refused, false, 0, 0.2)}
	r := p.report()
	var text, asJSON bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"HTTP/1.1 new           10 sent       9 answered      1 lost", "stream of events   not asked for", "rolling restart", "lost: 1 of 10 requests",
		"pod web-1: container ended T0+0.3s, exit status 0", "1 HTTP/1.1 new       refused      T0+0.2s to T0+0.2s  why",
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
			Step, Pod, Cause        string
			AfterDeletion, AfterEnd float64
		}
	}
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || len(back.Losses) != 1 {
		t.Fatalf("%v\n%s", err, asJSON.String())
	}
	if l := back.Losses[0]; l.Step != "rolling restart" || l.Pod != "web-1" || l.Cause != "arrival" || l.AfterDeletion != 0.2 || l.AfterEnd != -0.1 {
		t.Errorf("%+v", l)
	}
}
