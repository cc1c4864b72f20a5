package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// version returns code whose outputs are its name, the key and the message.
func version(name string) []byte {
	return fmt.Appendf(nil, "def handle(m): return %q + m.headers[\"Customer\"][0] + \" \" + m.text", name+" ")
}

// rolled returns the spec of a worker whose new versions are canaries of half of the
// customers.
func rolled(code []byte, rollout host.Rollout) host.Spec {
	return host.Spec{ID: "w", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Key: "Customer", Code: code, Rollout: rollout, By: "ann"}
}

// customers publishes messages from first to last for each of 20 customers.
func (r *rig) customers(first, last int) {
	r.t.Helper()
	for i := first; i <= last; i++ {
		for c := range 20 {
			m := nats.NewMsg("work.w")
			m.Header.Set("Customer", fmt.Sprint("c", c))
			m.Data = fmt.Append(nil, i)
			_, err := r.js.PublishMsg(r.t.Context(), m)
			must(r.t, err)
		}
	}
}

// wantEach checks that each customer has outputs of the messages 1 to last, once each and in
// order, and returns the versions that handled them, by customer.
func (r *rig) wantEach(last int) map[string][]string {
	r.t.Helper()
	r.eventually("there is an output of each message", func() bool { return len(r.outputs("out.w")) >= 20*last })
	versions := make(map[string][]string)
	for _, o := range r.outputs("out.w") {
		f := strings.Fields(o)
		versions[f[1]] = append(versions[f[1]], f[0])
		if want := fmt.Sprint(len(versions[f[1]])); f[2] != want {
			r.t.Errorf("customer %s has the output of %s, want %s", f[1], f[2], want)
		}
	}
	for c, v := range versions {
		if len(v) != last {
			r.t.Errorf("customer %s has %d outputs, want %d", c, len(v), last)
		}
	}
	return versions
}

func (r *rig) record(h *host.Host) *host.Record {
	r.t.Helper()
	rec, err := h.Get(r.t.Context(), "w")
	must(r.t, err)
	return rec
}

// A new version that fails more than the old one goes back by itself. Its messages are
// handled by the old version: none is lost, none is a dead letter, and their order is kept.
func TestACanaryThatFailsGoesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		code  string
		state string
	}{
		"fails":   {`def handle(m): fail("no")`, "of its 5 messages failed"},
		"rejects": {`def handle(m): reject("no")`, "of its 5 messages failed"},
		"kills":   {`def handle(m): return str(len([0] * (1 << 29)))`, "2 messages ended the process"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.tune = func(c *host.Config) { c.MaxRetries, c.MaxKills = host.NoRetry, 2 }
			h := r.start("a")
			rollout := host.Rollout{Canary: 50, For: time.Hour, Messages: 5}
			spec := rolled(version("old"), rollout)
			_, err := h.Apply(t.Context(), spec)
			must(t, err)
			before := r.record(h)
			spec.Code = []byte(tc.code)
			_, err = h.Apply(t.Context(), spec)
			must(t, err)
			if rec := r.record(h); rec.Candidate == nil || rec.Digest != before.Digest || rec.Candidate.Digest != fetch.Digest(spec.Code) {
				t.Fatalf("the new version is no canary: %+v", rec)
			}
			r.customers(1, 3)
			r.eventually("it went back", func() bool { return r.record(h).Candidate == nil })
			r.customers(4, 4)
			for c, v := range r.wantEach(4) {
				if slices.Contains(v, "new") {
					t.Errorf("customer %s: %q", c, v)
				}
			}
			r.letters(h, "w", 0)
			rec := r.record(h)
			if v := rec.History[len(rec.History)-1]; v.Rollout != "rolled back" || rec.Digest != before.Digest || rec.State != host.StateRunning || !strings.Contains(rec.Changed.Note, "the canary is rolled back: ") || !strings.Contains(rec.Changed.Note, tc.state) {
				t.Errorf("the record is %+v", rec)
			}
			lines, err := h.Logs(t.Context(), "w", 0, 1000)
			must(t, err)
			if !slices.ContainsFunc(lines, func(l host.Line) bool {
				return strings.Contains(l.Text, "failed in the canary and goes to the version before it")
			}) {
				t.Errorf("the log has %v", lines)
			}
			// The next version is another generation, with counts of its own.
			spec.Code = version("new")
			_, err = h.Apply(t.Context(), spec)
			must(t, err)
			if next := r.record(h).Candidate; next == nil || next.Generation != 3 {
				t.Errorf("the next canary is %+v", next)
			}
		})
	}
}

// A new version that does not fail gets every message after its time and its number of
// messages. Until then each key has one version.
func TestACanaryThatIsGoodIsPromoted(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	spec := rolled(version("old"), host.Rollout{Canary: 50, For: 1, Messages: 60})
	_, err := h.Apply(t.Context(), spec)
	must(t, err)
	spec.Code, spec.Limits = version("new"), engine.Limits{Outputs: 7}
	_, err = h.Apply(t.Context(), spec)
	must(t, err)
	r.customers(1, 2)
	share := 0
	for c, v := range r.wantEach(2) {
		if v[0] != v[1] {
			t.Errorf("customer %s has two versions: %q", c, v)
		}
		if v[0] == "new" {
			share++
		}
	}
	if share == 0 || share == 20 {
		t.Fatalf("%d of 20 customers have the new version", share)
	}
	if rec := r.record(h); rec.Candidate == nil || rec.Limits.Outputs != 0 || rec.Candidate.Limits.Outputs != 7 {
		t.Fatalf("before it has handled enough messages: %+v", rec)
	}
	last := 2
	for r.record(h).Candidate != nil { // until it has handled 60 messages
		last++
		r.customers(last, last)
		r.wantEach(last)
	}
	must(t, h.StartWorker(t.Context(), "w")) // changes nothing, and returns when the host has applied the record
	last++
	r.customers(last, last)
	for c, v := range r.wantEach(last) {
		if v[last-1] != "new" || v[0] == "new" && slices.Contains(v, "old") {
			t.Errorf("customer %s: %q", c, v)
		}
	}
	if rec := r.record(h); rec.Digest != fetch.Digest(spec.Code) || rec.Limits.Outputs != 7 || rec.History[1].Rollout != "promoted" || !strings.Contains(rec.Changed.Note, "the canary is promoted: ") {
		t.Errorf("the record is %+v", rec)
	}
	if p, err := h.Diff(t.Context(), spec); err != nil || len(p.Differences) > 0 {
		t.Errorf("the worker is not as its spec says: %+v, %v", p, err)
	}
}

// An operator ends a canary either way. A spec is compared with the canary, and the spec
// of the old version ends it.
func TestAnOperatorEndsACanary(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	old := rolled(version("old"), host.Rollout{Canary: 10})
	next := old
	next.Code, next.Limits.Outputs = version("new"), 9
	begin := func() {
		t.Helper()
		_, err := h.Apply(t.Context(), next)
		must(t, err)
		if p, err := h.Apply(t.Context(), next); err != nil || len(p.Differences) > 0 || r.record(h).Candidate == nil {
			t.Fatalf("a second time: %+v, %v, %+v", p, err, r.record(h).Candidate)
		}
	}
	ended := func(what string, code []byte, rollout string) {
		t.Helper()
		rec := r.record(h)
		if v := rec.History[len(rec.History)-1]; rec.Candidate != nil || rec.Digest != fetch.Digest(code) || v.Rollout != rollout {
			t.Errorf("%s: %+v", what, rec)
		}
	}
	_, err := h.Apply(t.Context(), old)
	must(t, err)
	if err := h.Promote(t.Context(), "w"); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("promote without a canary: %v", err)
	}
	begin()
	must(t, h.Rollback(t.Context(), "w", fetch.Digest(old.Code), host.By("bob", "")))
	ended("rollback", old.Code, "rolled back")
	begin()
	_, err = h.Apply(t.Context(), old)
	must(t, err)
	ended("the old spec", old.Code, "rolled back")
	if p, err := h.Diff(t.Context(), old); err != nil || len(p.Differences) > 0 {
		t.Errorf("after the old spec: %+v, %v", p, err)
	}
	begin()
	must(t, h.LoadCodeFromContent(t.Context(), "w", version("third")))
	if c := r.record(h).Candidate; c == nil || c.Limits.Outputs != 9 || c.Digest != fetch.Digest(version("third")) {
		t.Errorf("a newer version is not the canary: %+v", c)
	}
	must(t, h.Promote(t.Context(), "w", host.By("bob", "")))
	ended("promote", version("third"), "promoted")
	if rec := r.record(h); rec.History[3].Rollout != "replaced" || rec.Limits.Outputs != 9 {
		t.Errorf("the history is %+v", rec.History)
	}
	r.customers(1, 1)
	for c, v := range r.wantEach(1) {
		if v[0] != "third" {
			t.Errorf("customer %s: %q", c, v)
		}
	}
	for _, bad := range []host.Rollout{{Canary: 100}, {Canary: -1}, {For: time.Hour}, {Canary: 1, Margin: 101}, {Canary: 1, For: -1}} {
		spec := old
		spec.Rollout = bad
		if _, err := h.Diff(t.Context(), spec); !errors.Is(err, host.ErrInvalid) || !strings.Contains(err.Error(), "rollout: ") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	must(t, h.StopWorker(t.Context(), "w"))
	_, err = h.Apply(t.Context(), next)
	must(t, err)
	ended("a new version of a stopped worker", next.Code, "")
}

// A canary goes on when the host of its worker is killed: each key keeps its version, and
// each message has one output.
func TestACanarySurvivesItsHost(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs hosts in processes of their own")
	}
	srv := brokertest.StartCluster(t, 1)
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: srv.URL()}), 1)
	log, err := os.CreateTemp(t.TempDir(), "log")
	must(t, err)
	f := &fleetOf{t: t, url: srv.URL(), replicas: 1, log: log}
	t.Cleanup(func() {
		if t.Failed() {
			f.tell()
			return
		}
		for len(f.running) > 0 {
			f.end(0, syscall.SIGTERM)
		}
	})
	cfg, err := chaosConfig("api", 1)
	must(t, err)
	h, err := host.New(r.js, cfg) // answers requests, and runs nothing
	must(t, err)
	defer func() { must(t, h.Stop(context.Background())) }()
	counted := func(name string) []byte {
		return fmt.Appendf(nil, `
def handle(m):
    c = m.headers["Customer"][0]
    n = int(state.get(c) or "0") + 1
    state.put(c, str(n))
    return %q + c + " " + str(n)
`, name+" ")
	}
	f.start()
	spec := rolled(counted("old"), host.Rollout{Canary: 50, For: time.Hour, Messages: 5})
	_, err = h.Apply(t.Context(), spec)
	must(t, err)
	spec.Code = counted("new")
	_, err = h.Apply(t.Context(), spec)
	must(t, err)
	r.customers(1, 2)
	r.eventually("some messages are handled", func() bool { return len(r.outputs("out.w")) >= 10 })
	f.end(0, syscall.SIGKILL)
	r.customers(3, 3)
	f.start()
	both := make(map[string]bool)
	for c, v := range r.wantEach(3) {
		both[v[0]] = true
		if len(slices.Compact(slices.Clone(v))) != 1 {
			t.Errorf("customer %s has two versions: %q", c, v)
		}
	}
	if !both["old"] || !both["new"] || r.record(h).Candidate == nil {
		t.Errorf("there is no canary: %v, %+v", both, r.record(h).Candidate)
	}
}

// A timer that the canary fails goes to the old version, like a message.
func TestATimerGoesBackFromACanary(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries = host.NoRetry }
	h := r.start("a")
	code := func(then string) []byte {
		return []byte("def handle(m):\n    if m.timer == None:\n        timers.set(\"t\", 1, m.headers[\"Customer\"][0])\n        return None\n    " + then)
	}
	spec := rolled(code(`return "old " + m.text`), host.Rollout{Canary: 50, For: time.Hour, Messages: 10_000})
	_, err := h.Apply(t.Context(), spec)
	must(t, err)
	spec.Code = code(`fail("no")`)
	_, err = h.Apply(t.Context(), spec)
	must(t, err)
	r.customers(1, 1)
	r.eventually("each timer has an output", func() bool { return len(r.outputs("out.w")) >= 20 })
	if once := slices.Compact(sorted(r.outputs("out.w"))); len(once) != 20 || !strings.HasPrefix(once[0], "old c") {
		t.Errorf("the outputs are %q", once)
	}
	r.letters(h, "w", 0)
	if rows := h.Tallies(); len(rows) < 2 || rows[1].Generation != 2 || rows[1].Failed == 0 {
		t.Errorf("the canary had no timer: %+v", rows)
	}
}
