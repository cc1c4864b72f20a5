package host_test

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// hostile is code of a tenant who wants the host: each version differs from the last.
var hostile = []struct{ mime, code string }{
	{"text/javascript", `function handle(m) { for (;;); } // %d`},
	{"text/javascript", `function handle(m) { return String(new ArrayBuffer(2**46).byteLength) } // %d`},
	{"text/javascript", `function handle(m) { JSON.parse("[".repeat(2e7)) } // %d`},
	{"text/x-starlark", "def handle(m): return str(len([0] * (1 << 29))) # %d"},
	{"text/x-starlark", "def handle(m):\n    while True: pass # %d"},
	{"text/javascript", `const kept = []; function handle(m) { for (;;) kept.push("x".repeat(1 << 20) + kept.length) } // %d`},
	{"text/javascript", `JSON.parse("[".repeat(2e7)) // %d`},
	{"text/javascript", `function handle(m) { return /^(?=(a+)+$)(a+)+$/.test("a".repeat(40) + "!") } // %d`},
}

// goodOnly logs what concerns the good worker.
type goodOnly struct{ t *testing.T }

func (w goodOnly) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "=good ") || strings.Contains(string(line), "w-good") {
		w.t.Logf("%s", line)
	}
	return len(line), nil
}

// A tenant whose code changes all the time, and attacks with each version, costs a
// neighbour no message, no order, and no time that lasts: the neighbour has no backlog at
// the end.
// HOST_HOSTILE is how long it lasts: without it 5 s, or 2 s in a short run.
func TestAHostileTenantCostsItsNeighbourNothing(t *testing.T) {
	lasts := 5 * time.Second
	if testing.Short() {
		lasts = 2 * time.Second
	}
	if text := os.Getenv("HOST_HOSTILE"); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		must(t, err)
	}
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxRetries, c.MaxKills, c.DrainTimeout = 1, 3, time.Second
		c.Logger = slog.New(slog.NewTextHandler(goodOnly{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h := r.start("a")
	create(t, h, host.Spec{ID: "good", MIMEType: "text/javascript", Topic: "work.good", OutputTopic: "out.good", Code: []byte("function handle(m) { return m.text }")})
	limits := engine.Limits{Time: 300 * time.Millisecond, Load: time.Second, Memory: 64 << 20}
	end := time.Now().Add(lasts)
	ended := make(chan int)
	go func() { // the good one's load
		n := 0
		for ; time.Now().Before(end); n++ {
			if _, err := r.js.Publish(t.Context(), "work.good", fmt.Append(nil, n)); err != nil {
				t.Error(err)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		ended <- n
	}()
	versions := 0
	for ; time.Now().Before(end); versions++ {
		attack := hostile[versions%len(hostile)]
		id := fmt.Sprint("bad-", versions%16)
		if versions >= 16 {
			if err := h.Delete(t.Context(), id); err != nil && versions%len(hostile) != 6 { // that one was never created
				t.Error(err)
			}
		}
		topic := fmt.Sprint("work.bad.", versions)
		own := limits
		if versions%len(hostile) != 6 {
			own.Load = 30 * time.Second // it must load, also on a busy machine
		}
		_, err := h.Create(t.Context(), host.Spec{ID: id, MIMEType: attack.mime, Topic: topic, Limits: own, Code: fmt.Appendf(nil, attack.code, versions)})
		if loads := versions%len(hostile) != 6; loads != (err == nil) {
			t.Errorf("Create of version %d: %v", versions, err)
		}
		r.publish(topic, "1", "2", "3")
	}
	n := <-ended
	r.eventually("every message of the good worker is handled", func() bool { return len(r.outputs("out.good")) >= n })
	got := r.outputs("out.good")
	for i, output := range got {
		if want := strconv.Itoa(i); output != want {
			t.Errorf("output %d is %q; around it: %q", i, output, got[max(0, i-5):min(len(got), i+5)])
			break
		}
	}
	if once := slices.Compact(sorted(slices.Clone(got))); len(once) != n || len(got) != n {
		t.Errorf("%d outputs of %d messages, %d of them different", len(got), n, len(once))
	}
	for _, tally := range h.Tallies() {
		if tally.Worker == "good" && (tally.Failed > 0 || tally.LoadsFailed > 0) {
			t.Errorf("the good worker failed: %+v", tally)
		}
	}
	t.Logf("%d versions attacked, %d messages of the good worker are handled, %+v", versions, n, h.Isolation())
	if letters, err := h.DeadLetters(t.Context(), "good", 0, 10); err != nil || len(letters) > 0 {
		t.Errorf("dead letters of the good worker: %v, %v", letters, err)
	}
}
