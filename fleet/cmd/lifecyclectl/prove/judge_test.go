package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
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
	return Pod{Name: "web-1", Ready: after(-60), Deleted: t0, Unready: after(0.1), Removed: after(ended), Ended: after(ended), ExitCode: &code}
}

// of returns a proof of a Deployment with these additional fields in its spec and in its
// container.
func of(t *testing.T, spec, container string) *proof {
	t.Helper()
	d := new(deployment)
	text := strings.NewReplacer(`"name": "main"`, `"name": "main"`+container, `"replicas": 2, "selector"`, `"replicas": 2`+spec+`, "selector"`).Replace(webDeployment)
	if err := json.Unmarshal([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	svc := new(service)
	if err := json.Unmarshal([]byte(webService), svc); err != nil {
		t.Fatal(err)
	}
	return &proof{d: d, svc: svc, k: &kubectl{namespace: "shop"}, port: svc.Spec.Ports[0], pods: &timeline{slices: map[string]map[types.UID]bool{}}, load: newAccount(),
		steps: []Step{{Name: "rolling restart", Began: after(-10), Ended: after(60)}}}
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

// Of pods that stop at the same time, the loss belongs to the one that ended latest
// before it.
func TestTheLatestEndIsTheCause(t *testing.T) {
	old, next := stopped(6, 0), stopped(6, 0)
	next.Name, next.Deleted, next.Ended = "web-2", after(3), after(9)
	for at, want := range map[float64]string{1: "web-1", 6.5: "web-1", 9.5: "web-2"} {
		pod, _ := attribute(lost(load.Fresh, load.Refused, false, 0, at), []Pod{old, next}, false, 30*time.Second)
		if pod == nil || pod.Name != want {
			t.Errorf("at T0+%v: %+v, want %s", at, pod, want)
		}
	}
}

// A pod that has just become ready is suspected when no pod ended lately.
func TestAYoungPodIsSuspected(t *testing.T) {
	old, next := stopped(1, 0), Pod{Name: "web-2", Ready: after(8)}
	for at, want := range map[float64]string{5: arrival, 8.2: tooEarly, 14: arrival, 17: unknown} {
		if _, cause := attribute(lost(load.Fresh, load.Refused, false, 0, at), []Pod{old, next}, false, 30*time.Second); cause != want {
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
