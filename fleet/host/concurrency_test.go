package host_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

// meeting lets calls go on once so many are there at the same time.
type meeting struct {
	size    int64
	present atomic.Int64
	all     chan struct{}
}

func newMeeting(size int64) *meeting { return &meeting{size: size, all: make(chan struct{})} }

// attend returns an error when the others do not come.
func (m *meeting) attend(ctx context.Context) error {
	if m.present.Add(1) == m.size {
		close(m.all)
	}
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d came", m.present.Add(-1)+1, m.size)
	}
}

// TestConcurrency has workers whose messages wait for each other, also of one key. Each has an
// outcome once, also while the concurrency changes and while a canary runs.
func TestConcurrency(t *testing.T) {
	r := newRig(t)
	met := newMeeting(3)
	w := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		switch string(m.Data) {
		case "meet":
			return text("met"), met.attend(ctx)
		case "get":
			_, _, err := s.Get(ctx, "a")
			return nil, err
		case "put":
			return nil, s.Put(ctx, "a", []byte("1"))
		case "timer":
			return nil, engine.TimersOf(s).SetTimer(ctx, engine.Timer{Name: "t", After: time.Hour})
		}
		return text(string(m.Data)), nil
	})
	w.Concurrency = 3
	r.tune = func(c *host.Config) { c.MaxRetries = host.NoRetry }
	h := r.startWith(w)
	r.publish("work.w", "meet", "meet", "meet")
	r.wantOutputs("out.w", "met", "met", "met")

	r.publish("work.w", "get", "put", "timer")
	for _, d := range r.letters(h, "w", 3) {
		if !strings.Contains(d.Reason, "has no state") && !strings.Contains(d.Reason, "has no timers") {
			t.Errorf("%s: %s", d.Data, d.Reason)
		}
	}

	var want []string
	for i, n := range []int{1, 5, 0, 64, 2} {
		for j := range 40 {
			want = append(want, fmt.Sprint(i, "-", j))
			r.publish("work.w", want[len(want)-1])
		}
		w.Concurrency = n
		_, err := h.Apply(t.Context(), w)
		must(t, err)
	}
	w.Concurrency, w.Code, w.Rollout = 0, []byte(" w "), host.Rollout{Canary: 50, For: time.Hour} // the same function
	_, err := h.Apply(t.Context(), w)
	must(t, err)
	for j := range 40 {
		want = append(want, fmt.Sprint("canary-", j))
		r.publish("work.w", want[len(want)-1])
	}
	r.publish("work.w", "get", "get", "get", "get") // no version has state
	r.letters(h, "w", 7)
	r.eventually("every message is handled", func() bool { return len(r.outputs("out.w")) >= 3+len(want) })
	if got := r.outputs("out.w")[3:]; !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("the outputs are %q", got)
	}
}

// TestConcurrencyWithAHandlerThatNeverReturns goes on beside it, and after it was abandoned. Each
// message has an outcome once.
func TestConcurrencyWithAHandlerThatNeverReturns(t *testing.T) {
	r := newRig(t)
	never := make(chan struct{})
	began := make(chan struct{})
	w := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if string(m.Data) == "never" {
			close(began)
			<-never
		}
		return text(string(m.Data)), nil
	})
	w.Concurrency, w.Limits = 2, engine.Limits{Time: time.Second}
	r.tune = func(c *host.Config) { c.MaxRetries = host.NoRetry }
	h := r.startWith(w)
	t.Cleanup(func() { close(never) }) // before the host stops
	r.publish("work.w", "never")
	<-began
	var want []string
	publish := func() {
		for range 50 {
			want = append(want, fmt.Sprint(len(want)))
			r.publish("work.w", want[len(want)-1])
		}
	}
	publish()
	r.eventually("the other messages are handled", func() bool { return len(r.outputs("out.w")) >= len(want) })
	if d := r.letters(h, "w", 1)[0]; string(d.Data) != "never" {
		t.Errorf("the letter is of %s", d.Data)
	}
	publish()
	r.eventually("every message is handled", func() bool { return len(r.outputs("out.w")) >= len(want) })
	if got := r.outputs("out.w"); !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("%d outputs, want %d", len(got), len(want))
	}
}

// TestConcurrencyOfChildren has a child for each message at once. The code of a message waits for
// the answer of a server that answers when three have asked.
func TestConcurrencyOfChildren(t *testing.T) {
	engines := map[string]string{
		"text/x-starlark": "def handle(m): return fetch(\"URL\").text",
		"text/javascript": "async function handle(m) { return await (await fetch(\"URL\")).text() }",
	}
	all := []engine.Engine{starlark.New(), js.New()}
	if py, err := python.New(); err == nil {
		engines["text/x-python"] = "def handle(message): return fetch(\"URL\").text"
		all = append(all, py)
	}
	r := newRig(t)
	var met atomic.Pointer[meeting]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if met.Load().attend(r.Context()) == nil {
			fmt.Fprint(w, "met")
		}
	}))
	defer srv.Close()
	r.tune = func(c *host.Config) {
		c.MaxRetries = host.NoRetry
		registry, err := engine.NewRegistry(all...)
		must(t, err)
		c.Engines = registry
		c.Grants = map[string]host.Grant{"*": {HTTP: host.HTTPGrant{Allow: []string{srv.URL + "/*"}, Networks: []string{"127.0.0.0/8"}}}}
	}
	h := r.start("a")
	for mime, code := range engines {
		met.Store(newMeeting(3))
		id := strings.TrimPrefix(mime, "text/")
		create(t, h, host.Spec{ID: id, MIMEType: mime, Topic: "work." + id, OutputTopic: "out." + id, Concurrency: 3,
			Limits: engine.Limits{Time: bound}, HTTP: host.HTTP{Allow: []string{srv.URL + "/*"}},
			Code: []byte(strings.ReplaceAll(code, "URL", srv.URL+"/"))})
		r.publish("work."+id, "1", "2", "3")
		r.wantOutputs("out."+id, "met", "met", "met")
	}
}

// TestConcurrencyIsRefused gives specs that contradict themselves.
func TestConcurrencyIsRefused(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	for _, tc := range []struct {
		n     int
		group string
		want  string
	}{
		{-1, "", "concurrency -1: invalid: want 1 to 64"},
		{65, "", "concurrency 65: invalid: want 1 to 64"},
		{2, "g", "the group g handles one message at a time"},
	} {
		spec := host.Spec{ID: "w", Topic: "work.w", MIMEType: "text/x-starlark", Code: prefix(""), Concurrency: tc.n, Group: tc.group}
		if _, err := h.Apply(t.Context(), spec); !errors.Is(err, host.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d, %q: %v, want %q", tc.n, tc.group, err, tc.want)
		}
	}
}
