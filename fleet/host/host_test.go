package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/fsm"
	"go.uber.org/goleak"
)

// scenarioEnv makes the test binary run as a host process in place of the tests.
const scenarioEnv = "HOST_TEST_SCENARIO"

// programEnv names the program of the children. It is fleet/cmd/engine, because the tests
// themselves, with the race detector and a server in them, take seconds to start.
const programEnv = "HOST_TEST_ENGINE"

func TestMain(m *testing.M) {
	host.EngineMain(starlark.New(), js.New()) // of the example, which names no program
	if os.Getenv(scenarioEnv) != "" {
		os.Exit(hostProcess())
	}
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		panic(err)
	}
	program := filepath.Join(dir, "engine")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/engine").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, out))
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Setenv(programEnv, program)); err != nil { //nolint:gosec // children of other users run it
		panic(err)
	}
	goleak.VerifyTestMain(m, append(brokertest.ServerLeaks(goleak.IgnoreTopFunction), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))...)
}

// TestLife takes one worker through every verb, from Create to Delete.
func TestLife(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	ctx := t.Context()
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("1"), By: "ann", Note: "first"})
	r.publish("work.w", "a")
	r.wantOutputs("out.w", "1a")

	// Stop and start, each twice: nothing is lost or skipped in between.
	must(t, h.StopWorker(ctx, "w"))
	must(t, h.StopWorker(ctx, "w"))
	r.publish("work.w", "b", "c")
	if got := h.Local(); len(got) != 0 {
		t.Errorf("a stopped worker is loaded: %v", got)
	}
	if got := r.outputs("out.w"); len(got) != 1 {
		t.Errorf("a stopped worker handled %v", got)
	}
	must(t, h.StartWorker(ctx, "w"))
	must(t, h.StartWorker(ctx, "w"))
	r.wantOutputs("out.w", "1a", "1b", "1c")

	// New code, bad code, and back.
	must(t, h.LoadCodeFromContent(ctx, "w", prefix("2"), host.By("bob", "better")))
	r.publish("work.w", "d")
	r.wantOutputs("out.w", "1a", "1b", "1c", "2d")
	if err := h.LoadCodeFromContent(ctx, "w", []byte("def handle(")); !errors.Is(err, engine.ErrBadCode) {
		t.Errorf("bad code: %v", err)
	}
	must(t, h.Rollback(ctx, "w", fetch.Digest(prefix("1")), host.By("cat", "")))
	r.publish("work.w", "e")
	r.wantOutputs("out.w", "1a", "1b", "1c", "2d", "1e")
	if err := h.Rollback(ctx, "w", fetch.Digest([]byte("never"))); !errors.Is(err, host.ErrNoVersion) {
		t.Errorf("roll back to what never was: %v", err)
	}

	history, err := h.History(ctx, "w")
	must(t, err)
	var told []string
	for _, v := range history {
		told = append(told, fmt.Sprint(v.Generation, " ", v.Source, " ", v.By, " ", v.Digest[:4], " ", !v.At.IsZero()))
	}
	one, two := fetch.Digest(prefix("1"))[:4], fetch.Digest(prefix("2"))[:4]
	if want := []string{"1 content ann " + one + " true", "2 content bob " + two + " true", "3 rollback cat " + one + " true"}; !slices.Equal(told, want) {
		t.Errorf("history %q, want %q", told, want)
	}
	r.eventually("the counts per version", func() bool {
		return slices.Equal(h.Tallies(), []host.Tally{{Worker: "w", Generation: 1, Succeeded: 3}, {Worker: "w", Generation: 2, Succeeded: 1}, {Worker: "w", Generation: 3, Succeeded: 1}})
	})

	must(t, h.Delete(ctx, "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	for what, err := range map[string]error{"start": h.StartWorker(ctx, "w"), "stop": h.StopWorker(ctx, "w"), "delete": h.Delete(ctx, "w"), "roll back": h.Rollback(ctx, "w", one)} {
		if !errors.Is(err, host.ErrNotFound) {
			t.Errorf("%s of a deleted worker: %v", what, err)
		}
	}
	// The id is free again, and a new worker with it has no state of the old one.
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("3")})
	if history, err := h.History(ctx, "w"); err != nil || len(history) != 1 {
		t.Errorf("a new life has the history %v, %v", history, err)
	}
}

// A worker that is made under the id of another one has counts of its own, and counts of versions that
// a worker cannot go back to are forgotten.
func TestCountsBelongToAWorker(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	spec := host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("")}
	counts := func(want ...host.Tally) {
		t.Helper()
		r.eventually(fmt.Sprintf("the counts are %+v", want), func() bool { return slices.Equal(h.Tallies(), want) })
	}
	create(t, h, spec)
	r.publish("work.w", "1")
	counts(host.Tally{Worker: "w", Generation: 1, Succeeded: 1})
	must(t, h.Delete(t.Context(), "w"))
	counts()
	spec.Tenant = "other"
	create(t, h, spec)
	counts(host.Tally{Worker: "w", Generation: 1})
	for i := range host.MaxHistory + 1 {
		must(t, h.LoadCodeFromContent(t.Context(), "w", prefix(fmt.Sprint(i))))
	}
	r.eventually("the oldest versions are forgotten", func() bool {
		rows := h.Tallies()
		return len(rows) > 0 && len(rows) <= host.MaxHistory && rows[0].Generation > 1
	})
}

func TestCreateFails(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	good := host.Spec{ID: "w", MIMEType: "text/x-starlark", Topic: "work.w", Code: prefix("1")}
	for name, c := range map[string]struct {
		change func(*host.Spec)
		is     error
	}{
		"id":           {func(q *host.Spec) { q.ID = "a.b" }, host.ErrInvalid},
		"group":        {func(q *host.Spec) { q.Group = "a b" }, host.ErrInvalid},
		"engine":       {func(q *host.Spec) { q.MIMEType = "text/x-cobol" }, engine.ErrNoEngine},
		"mime":         {func(q *host.Spec) { q.MIMEType = "/" }, engine.ErrNoEngine},
		"topic":        {func(q *host.Spec) { q.Topic = "work..w" }, host.ErrInvalid},
		"no stream":    {func(q *host.Spec) { q.Topic = "nowhere" }, host.ErrNoTopic},
		"output topic": {func(q *host.Spec) { q.OutputTopic = "out.*" }, host.ErrInvalid},
		"no code":      {func(q *host.Spec) { q.Code = nil }, host.ErrInvalid},
		"both":         {func(q *host.Spec) { q.URL = "https://example.com/x" }, host.ErrInvalid},
		"bad code":     {func(q *host.Spec) { q.Code = []byte("def") }, engine.ErrBadCode},
		"digest":       {func(q *host.Spec) { q.Digest = "00" }, fetch.ErrDigest},
		"http":         {func(q *host.Spec) { q.Code, q.URL = nil, "http://example.com/x" }, fetch.ErrForbidden},
		"loopback":     {func(q *host.Spec) { q.Code, q.URL = nil, "https://127.0.0.1/x" }, fetch.ErrForbidden},
		"limits":       {func(q *host.Spec) { q.Limits.Time = -1 }, nil},
		"large":        {func(q *host.Spec) { q.Code = make([]byte, 33<<20) }, fetch.ErrTooLarge},
	} {
		req := good
		c.change(&req)
		if _, err := h.Create(t.Context(), req); err == nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestCreateUndoes checks that a Create whose late step fails leaves nothing behind. The
// server refuses the consumer, because the stream may have no more of them.
func TestCreateUndoes(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	_, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 1})
	if err != nil {
		// The server does not change this limit of an existing stream.
		must(t, r.js.DeleteStream(t.Context(), "WORK"))
		r.eventually("the stream's successor", func() bool { // the server removes files a moment later
			_, err = r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 1})
			return err == nil
		})
	}
	create(t, h, host.Spec{ID: "one", Topic: "work.1", Code: prefix("1")})
	before := r.leftovers()
	_, err = h.Create(t.Context(), host.Spec{ID: "two", MIMEType: "text/x-starlark", Topic: "work.2", Code: prefix("2")})
	if err == nil || !strings.Contains(err.Error(), "subscribe") {
		t.Fatalf("Create: %v, want a failure to subscribe", err)
	}
	if left := r.leftovers(); !slices.Equal(sorted(left), sorted(before)) {
		t.Errorf("left behind: %q, before: %q", left, before)
	}
}

func TestCreateOnTwoHostsAtOnce(t *testing.T) {
	r := newRig(t)
	a, b := r.start("a"), r.start("b")
	for i := range 5 {
		id := fmt.Sprint("w", i)
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for n, h := range []*host.Host{a, b} {
			wg.Go(func() {
				_, errs[n] = h.Create(t.Context(), host.Spec{ID: id, MIMEType: "text/x-starlark", Topic: "work." + id, OutputTopic: "out." + id, Code: prefix(fmt.Sprint(n))})
			})
		}
		wg.Wait()
		winner := slices.Index(errs, nil)
		if winner < 0 || !errors.Is(errs[1-winner], host.ErrExists) {
			t.Fatalf("%s: %v", id, errs)
		}
		r.publish("work."+id, "x")
		r.wantOutputs("out."+id, fmt.Sprint(winner, "x"))
	}
}

func TestPhases(t *testing.T) {
	must(t, host.States().Validate())
	r := newRig(t)
	h := r.host("a") // not started: no host ends the deletion
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("1")})
	kv, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	entry, err := kv.Get(t.Context(), "w")
	must(t, err)
	_, err = kv.PutString(t.Context(), "w", strings.Replace(string(entry.Value()), `"Running"`, `"Deleting"`, 1))
	must(t, err)
	var refused *fsm.TransitionError
	if err := h.StartWorker(t.Context(), "w"); !errors.As(err, &refused) || refused.From != "Deleting" {
		t.Errorf("start of one that is being deleted: %v", err)
	}
	must(t, h.Delete(t.Context(), "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestRecovery checks that after a restart running workers are Running and stopped ones
// Stopped, that a worker that cannot be loaded does not keep the others from running,
// and that stopping a host changes nothing that is stored.
func TestRecovery(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	for _, id := range []string{"runs", "stopped", "broken"} {
		create(t, h, host.Spec{ID: id, Topic: "work." + id, OutputTopic: "out." + id, Code: prefix(id)})
	}
	must(t, h.StopWorker(t.Context(), "stopped"))
	before, err := h.List(t.Context())
	must(t, err)
	r.stop(h)
	r.publish("work.runs", "1")
	r.publish("work.stopped", "1")
	after, err := h.List(t.Context())
	must(t, err)
	if fmt.Sprint(before[0], before[1], before[2]) != fmt.Sprint(after[0], after[1], after[2]) {
		t.Error("stopping the host changed a record")
	}
	code, err := r.js.Stream(t.Context(), "HOST_CODE")
	must(t, err)
	must(t, code.Purge(t.Context(), jetstream.WithPurgeSubject("$host.code.broken.>")))
	again := r.start("b")
	r.wantOutputs("out.runs", "runs1")
	for id, want := range map[string]host.State{"runs": host.StateRunning, "stopped": host.StateStopped, "broken": host.StateFailed} {
		r.eventually(id+" is "+string(want), func() bool {
			rec, err := again.Get(t.Context(), id)
			must(t, err)
			return rec.State == want
		})
	}
	if err := again.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "worker broken: read code") {
		t.Errorf("Recover: %v", err)
	}
	if len(r.outputs("out.stopped")) != 0 {
		t.Error("a stopped worker was started by recovery")
	}
	must(t, again.StartWorker(t.Context(), "stopped"))
	r.wantOutputs("out.stopped", "stopped1")
	// New code makes a failed worker run.
	must(t, again.LoadCodeFromContent(t.Context(), "broken", prefix("mended")))
	r.publish("work.broken", "1")
	r.wantOutputs("out.broken", "mended1")
}

func TestRecoveryProbe(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("1")})
	r.stop(h)

	t.Run("unknown while it runs", func(t *testing.T) {
		h := r.host("never-started")
		if err := h.Check(t.Context()); !errors.Is(err, lifecycle.ErrUnknown) {
			t.Errorf("Check: %v", err)
		}
	})
	t.Run("up when off, and on demand", func(t *testing.T) {
		r.tune = func(c *host.Config) { c.RecoveryOff = true }
		h := r.start("b")
		if err := h.Check(t.Context()); err != nil || len(h.Local()) != 0 {
			t.Errorf("Check: %v, local %v", err, h.Local())
		}
		must(t, h.Recover(t.Context()))
		if got := h.Local(); !slices.Equal(got, []string{"w"}) {
			t.Errorf("after Recover there is %v", got)
		}
		r.stop(h)
		r.tune = func(*host.Config) {}
	})
	t.Run("down with detail when all failed", func(t *testing.T) {
		code, err := r.js.Stream(t.Context(), "HOST_CODE")
		must(t, err)
		must(t, code.Purge(t.Context()))
		h := r.host("c")
		must(t, h.Start(context.Background()))
		defer r.stop(h)
		r.eventually("the probe is down", func() bool {
			err := h.Check(t.Context())
			return err != nil && !errors.Is(err, lifecycle.ErrUnknown) && strings.Contains(err.Error(), "worker w: read code")
		})
	})
}
