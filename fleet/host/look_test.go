package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestLogs checks that every host returns what a worker printed, the newest lines of
// many, that a worker that floods its log loses lines and the log says so, that a
// follower gets each line once, and that the log goes with the worker.
func TestLogs(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: []byte(`
def handle(message):
    if message.text == "flood":
        for i in range(5000):
            print("flood", i)
    else:
        print("got " + message.text)
        print("twice")
`)})
	other := r.host("b") // it runs no worker
	texts := func(before uint64, limit int) (all []string) {
		t.Helper()
		lines, err := other.Logs(t.Context(), "w", before, limit)
		must(t, err)
		for _, l := range lines {
			if l.Host != "a" || l.Digest == "" || l.At.IsZero() {
				t.Errorf("the line is %+v", l)
			}
			all = append(all, l.Text)
		}
		return all
	}
	if got := texts(0, 10); len(got) != 0 {
		t.Errorf("before the first message the log has %q", got)
	}
	follow, cancel := context.WithCancel(t.Context())
	got := make(chan string, 4*host.MaxLines)
	ended := make(chan error, 1)
	go func() {
		ended <- other.FollowLogs(follow, "w", 0, func(l host.Line) error { got <- l.Text; return nil })
	}()
	r.publish("work.w", "one", "two")
	for _, want := range []string{"got one", "twice", "got two", "twice"} {
		select {
		case line := <-got:
			if line != want {
				t.Errorf("the follower got %q, want %q", line, want)
			}
		case <-time.After(bound):
			t.Fatalf("the follower never got %q", want)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the follower ended with %v", err)
	}
	if all, last := texts(0, 10), texts(0, 2); !slices.Equal(all, []string{"got one", "twice", "got two", "twice"}) || !slices.Equal(last, all[2:]) {
		t.Errorf("the log is %q, its end %q", all, last)
	}
	lines, err := other.Logs(t.Context(), "w", 0, 10)
	must(t, err)
	if older := texts(lines[2].Seq, 1); !slices.Equal(older, []string{"twice"}) {
		t.Errorf("the line before the third is %q", older)
	}

	r.publish("work.w", "flood", "three")
	dropped := ""
	r.eventually("the log says that lines are missing", func() bool { // once there is a budget again
		r.publish("work.w", "three")
		for _, line := range texts(0, 2*host.MaxLines) {
			if strings.Contains(line, "were dropped") {
				dropped = line
			}
		}
		return dropped != ""
	})
	stream, err := r.js.Stream(t.Context(), "HOST_LINES")
	must(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$host.lines.w"))
	must(t, err)
	if n, kept := len(texts(0, 2*host.MaxLines)), info.State.Subjects["$host.lines.w"]; n != host.MaxLines || kept != host.MaxLines {
		t.Errorf("the log has %d lines, and %d are kept, want %d: %s", n, kept, host.MaxLines, dropped)
	}
	must(t, h.Delete(t.Context(), "w"))
	for what, err := range map[string]error{
		"the log of a deleted worker":   func() error { _, err := other.Logs(t.Context(), "w", 0, 1); return err }(),
		"to follow it":                  other.FollowLogs(t.Context(), "w", 0, func(host.Line) error { return nil }),
		"the state of a deleted worker": func() error { _, _, err := other.Values(t.Context(), "w", 0, 1); return err }(),
		"a test of it":                  func() error { _, err := other.Test(t.Context(), "w", host.TestRequest{}); return err }(),
	} {
		if !errors.Is(err, host.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	if left := texts(0, 10); len(left) != 0 {
		t.Errorf("a new worker of that name has the log %q", left)
	}
}

// TestValues checks that what a worker has stored can be read in pages, each key once
// and no deleted key, and by its key.
func TestValues(t *testing.T) {
	r := newRig(t)
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		for i := range 7 {
			if err := s.Put(ctx, fmt.Sprintf("key.%d", i), fmt.Appendf(nil, "%s %d", m.Data, i)); err != nil {
				return nil, err
			}
		}
		return nil, s.Delete(ctx, "key.3")
	}))
	r.publish("work.w", "one", "two")
	r.eventually("the state is written", func() bool { return r.value(h, "w", "key.6") == "two 6" })
	r.eventually("the key is deleted", func() bool {
		_, err := h.Value(t.Context(), "w", "key.3")
		return errors.Is(err, host.ErrNoKey)
	})
	for _, limit := range []int{1, 2, 100} {
		found := map[string]string{}
		for after, more := uint64(0), true; more; {
			values, again, err := h.Values(t.Context(), "w", after, limit)
			must(t, err)
			if len(values) > limit || again && len(values) == 0 {
				t.Fatalf("a page of %d has %d values, and there are more: %v", limit, len(values), again)
			}
			for _, v := range values {
				after = v.Seq
				if v.Key == "" {
					continue
				}
				if _, twice := found[v.Key]; twice {
					t.Errorf("%s is there twice", v.Key)
				}
				found[v.Key] = string(v.Data)
			}
			more = again
		}
		if len(found) != 6 || found["key.0"] != "two 0" {
			t.Errorf("in pages of %d: %q", limit, found)
		}
	}
	if v, err := h.Value(t.Context(), "w", "key.5"); err != nil || string(v.Data) != "two 5" || v.At.IsZero() {
		t.Errorf("the value is %+v, %v", v, err)
	}
	if _, err := h.Value(t.Context(), "w", "a b"); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("a key that cannot be: %v", err)
	}
}

// TestTrial checks that a test of code says what a message would cause, in every
// version of the code, and that it publishes and stores nothing.
func TestTrial(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	counts := func(step int) []byte {
		return []byte(fmt.Sprintf(`
print("loaded")
def handle(message):
    if message.text == "reject":
        reject("never")
    if message.text == "loop":
        while True:
            pass
    n = int(state.get("n") or "0") + %d
    state.put("n", str(n))
    state.delete("gone")
    print(message.topic, message.headers.get("X"), message.attempt)
    return [str(n), {"topic": "out.other", "data": "x", "headers": {"K": "v"}}]
`, step))
	}
	spec := host.Spec{ID: "w", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: counts(1)}
	_, err := h.Apply(t.Context(), spec)
	must(t, err)
	first, err := h.Get(t.Context(), "w")
	must(t, err)
	r.publish("work.w", "x")
	r.eventually("the state is written", func() bool { return r.value(h, "w", "n") == "1" })
	spec.Code = counts(10)
	_, err = h.Apply(t.Context(), spec)
	must(t, err)

	other := r.host("b")
	trial := func(req host.TestRequest) *host.Trial {
		t.Helper()
		tr, err := other.Test(t.Context(), "w", req)
		must(t, err)
		return tr
	}
	for what, tc := range map[string]struct {
		req  host.TestRequest
		want string
	}{
		"the current code": {host.TestRequest{}, "11"},
		"the first code":   {host.TestRequest{Digest: first.Digest[:12]}, "2"},
		"other code":       {host.TestRequest{Code: counts(100)}, "101"},
	} {
		tc.req.Data, tc.req.Header = []byte("x"), map[string][]string{"X": {"y"}}
		tr := trial(tc.req)
		if tr.Err != nil || len(tr.Outputs) != 2 || tr.Outputs[0].Topic != "out.w" || string(tr.Outputs[0].Data) != tc.want || tr.Outputs[1].Topic != "out.other" || tr.Outputs[1].Header["K"][0] != "v" {
			t.Errorf("%s: %+v", what, tr)
		}
		if len(tr.Changes) != 2 || tr.Changes[0].Key != "n" || string(tr.Changes[0].Data) != tc.want || !tr.Changes[1].Deleted {
			t.Errorf("%s changes %+v", what, tr.Changes)
		}
		if !slices.Equal(tr.Lines, []string{"loaded", `work.w ["y"] 1`}) || tr.Took <= 0 {
			t.Errorf("%s prints %q in %v", what, tr.Lines, tr.Took)
		}
	}
	if tr := trial(host.TestRequest{Data: []byte("reject")}); !tr.Rejected() || len(tr.Outputs)+len(tr.Changes) != 0 {
		t.Errorf("a message that is rejected: %+v", tr)
	}
	spec.Limits.Time = time.Second
	_, err = h.Apply(t.Context(), spec)
	must(t, err)
	if tr := trial(host.TestRequest{Data: []byte("loop")}); !errors.Is(tr.Err, engine.ErrLimit) || tr.Rejected() {
		t.Errorf("code that never returns: %+v", tr)
	}
	for what, tc := range map[string]struct {
		req  host.TestRequest
		want error
	}{
		"bad code": {host.TestRequest{Code: []byte("def handle(")}, engine.ErrBadCode}, "no version": {host.TestRequest{Digest: strings.Repeat("0", 64)}, host.ErrNoVersion},
		"a topic with wildcards": {host.TestRequest{Topic: "work.*"}, host.ErrInvalid},
	} {
		if _, err := other.Test(t.Context(), "w", tc.req); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.wantOutputs("out.w", "1")
	r.wantOutputs("out.other", "x")
	if n := r.value(h, "w", "n"); n != "1" {
		t.Errorf("after the tests the state is %s", n)
	}
	if lines, err := h.Logs(t.Context(), "w", 0, 100); err != nil || slices.ContainsFunc(lines, func(l host.Line) bool { return strings.Contains(l.Text, `["y"]`) }) {
		t.Errorf("the log has %+v, %v", lines, err)
	}
	must(t, h.Delete(t.Context(), "w"))
}

// TestBacklogs checks that a host says what waits for its workers.
func TestBacklogs(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	must(t, h.StopWorker(t.Context(), "w"))
	r.publish("work.w", "one", "two", "three")
	want := []host.Backlog{{Worker: "w", Waiting: host.Waiting{Backlog: 3}}}
	r.eventually("three messages wait", func() bool { // the server counts a moment later
		rows, err := h.Backlogs(t.Context())
		must(t, err)
		return slices.Equal(rows, want)
	})
	if rows, err := r.start("b").Backlogs(t.Context()); err != nil || len(rows) > 1 {
		t.Errorf("another host has %+v, %v", rows, err)
	}
}

// A reader who follows a log gets no line of a worker that is made later under the same ID: it may
// belong to another tenant.
func TestFollowerOfAWorkerThatIsMadeAnew(t *testing.T) {
	r := newRig(t)
	h, other := r.start("a"), r.host("b")
	spec := host.Spec{ID: "w", Topic: "work.w", Code: []byte("def handle(message):\n    print(message.text)\n")}
	create(t, h, spec)
	got := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- other.FollowLogs(t.Context(), "w", 0, func(l host.Line) error { got <- l.Text; return nil })
	}()
	r.publish("work.w", "of the first")
	if line := <-got; line != "of the first" {
		t.Fatalf("the follower got %q", line)
	}
	must(t, h.Delete(t.Context(), "w"))
	create(t, h, spec)
	r.publish("work.w", "of the second")
	select {
	case err := <-ended:
		if !errors.Is(err, host.ErrNotFound) {
			t.Errorf("the follower ended with %v", err)
		}
	case line := <-got:
		t.Errorf("the follower got %q of the other worker", line)
	case <-time.After(bound):
		t.Error("the follower waits on")
	}
}
