package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// fields returns the names of what a plan changes.
func fields(p *host.Plan) (names []string) {
	for _, d := range p.Differences {
		names = append(names, d.Field)
	}
	return names
}

// TestApply checks that a worker becomes as its spec says, that a second call changes
// nothing, and that Diff changes nothing and says the same as Apply.
func TestApply(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	spec := host.Spec{ID: "w", Tenant: "acme", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: prefix("one "), By: "ann"}
	apply := func(what string, create bool, want ...string) {
		t.Helper()
		for _, do := range []func() (*host.Plan, error){
			func() (*host.Plan, error) { return h.Diff(t.Context(), spec) },
			func() (*host.Plan, error) { return h.Diff(t.Context(), spec) },
			func() (*host.Plan, error) { return h.Apply(t.Context(), spec) },
		} {
			p, err := do()
			must(t, err)
			if p.Create != create || !slices.Equal(fields(p), want) {
				t.Errorf("%s: the plan is %+v, want create %v and %q", what, *p, create, want)
			}
		}
		before, err := h.Get(t.Context(), "w")
		must(t, err)
		again, err := h.Apply(t.Context(), spec)
		must(t, err)
		after, err := h.Get(t.Context(), "w")
		must(t, err)
		if again.Create || len(again.Differences) > 0 || after.Changed.At != before.Changed.At {
			t.Errorf("%s: a second time changes %+v", what, *again)
		}
	}
	generation := func(want int) {
		t.Helper()
		rec, err := h.Get(t.Context(), "w")
		must(t, err)
		if rec.Generation != want {
			t.Errorf("the generation is %d, want %d", rec.Generation, want)
		}
	}
	apply("a new worker", true, "tenant", "mimeType", "topic", "code", "outputTopic")
	r.publish("work.w", "x")
	r.wantOutputs("out.w", "one x")

	spec.Code = prefix("two ")
	apply("new code", false, "code")
	generation(2)
	spec.OutputTopic, spec.Key = "out.w2", "Customer"
	apply("another topic for outputs", false, "outputTopic", "key")
	generation(2)
	r.publish("work.w", "y")
	r.wantOutputs("out.w2", "two y")
	spec.Limits.Outputs = 7
	apply("limits", false, "limits.outputs")
	generation(3)
	if v, err := h.History(t.Context(), "w"); err != nil || v[2].Source != "settings" || v[2].Digest != v[1].Digest || v[2].Size != v[1].Size || v[2].By != "ann" {
		t.Errorf("the history is %+v, %v", v, err)
	}

	must(t, h.StopWorker(t.Context(), "w"))
	spec.Code = prefix("three ")
	apply("a stopped worker", false, "code")
	if rec, err := h.Get(t.Context(), "w"); err != nil || rec.State != host.StateStopped {
		t.Errorf("the stopped worker is %v, %v", rec.State, err)
	}

	for what, change := range map[string]func(*host.Spec){
		"topic": func(s *host.Spec) { s.Topic = "work.x" }, "tenant": func(s *host.Spec) { s.Tenant = "" },
		"mimeType": func(s *host.Spec) { s.MIMEType = "text/javascript" }, "group": func(s *host.Spec) { s.Group = "g" },
	} {
		other := spec
		change(&other)
		if _, err := h.Apply(t.Context(), other); !errors.Is(err, host.ErrInvalid) || !strings.Contains(err.Error(), what+" is ") {
			t.Errorf("another %s: %v", what, err)
		}
	}
	bad := spec
	bad.Code = []byte("def handle(")
	for _, do := range []func() error{func() error { _, err := h.Diff(t.Context(), bad); return err }, func() error { _, err := h.Apply(t.Context(), bad); return err }} {
		if err := do(); !errors.Is(err, engine.ErrBadCode) {
			t.Errorf("bad code: %v", err)
		}
	}
	apply("what is left", false)
	generation(4)
	if _, err := h.Diff(t.Context(), host.Spec{ID: "new", MIMEType: "text/x-starlark", Topic: "work.new", Code: prefix("")}); err != nil {
		t.Error(err)
	}
	if _, err := h.Get(t.Context(), "new"); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("after a diff the worker is there: %v", err)
	}
	if _, err := h.Apply(t.Context(), host.Spec{Topic: "work.w"}); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("a spec without an id: %v", err)
	}
}

// TestKeyOfASpec checks that messages with different keys do not wait for each other,
// although they have one subject.
func TestKeyOfASpec(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries = 1 << 20 }
	free := make(chan struct{})
	req := r.native("w", func(ctx context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if string(m.Data) == "b" {
			close(free)
			return text("b"), nil
		}
		select {
		case <-free:
			return text("a"), nil
		default:
			return nil, errors.New("b was not handled yet")
		}
	})
	req.Key = "Customer"
	h := r.startWith(req)
	for _, name := range []string{"a", "b"} {
		m := nats.NewMsg("work.w")
		m.Header.Set("Customer", name)
		m.Data = []byte(name)
		_, err := r.js.PublishMsg(t.Context(), m)
		must(t, err)
	}
	r.wantOutputs("out.w", "b", "a")
	r.eventually("the log has the error of the first attempt", func() bool {
		lines, err := h.Logs(t.Context(), "w", 0, 1)
		must(t, err)
		return len(lines) == 1 && lines[0].Error && strings.Contains(lines[0].Text, "b was not handled yet")
	})
}

// TestSecrets checks that code gets the variables and secrets that are granted to its
// tenant and no others, and that the host shows no value anywhere.
func TestSecrets(t *testing.T) {
	const token, key = "tok-4711-secret", "key-0815-secret"
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	t.Setenv("HOST_TEST_KEY", key)
	var log lockedBuffer
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxRetries = host.NoRetry
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Grants = map[string]host.Grant{
			"*":    {Env: map[string]string{"REGION": "north", "GREETING": "hello"}},
			"acme": {Env: map[string]string{"GREETING": "hi"}, Secrets: map[string]string{"TOKEN": "file:" + file, "KEY": "env:HOST_TEST_KEY", "GONE": "file:" + file + ".gone"}},
		}
	}
	h := r.start("a")
	code := []byte(`
def handle(message):
    if message.text == "leak":
        print("it is " + env["TOKEN"])
        fail("with " + env["TOKEN"] + " and " + env["KEY"])
    return " ".join(["%s=%s" % (name, env[name]) for name in sorted(env)])
`)
	spec := host.Spec{ID: "w", Tenant: "acme", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: code,
		Env: []string{"REGION", "GREETING"}, Secrets: []string{"TOKEN", "KEY"}}
	_, err := h.Apply(t.Context(), spec)
	must(t, err)
	r.publish("work.w", "x", "leak")
	r.wantOutputs("out.w", "GREETING=hi KEY="+key+" REGION=north TOKEN="+token)
	letters := r.letters(h, "w", 1)
	var lines []host.Line
	r.eventually("the log has the line and the error", func() bool {
		lines, err = h.Logs(t.Context(), "w", 0, 10)
		must(t, err)
		return len(lines) == 2
	})
	trial, err := h.Test(t.Context(), "w", host.TestRequest{Data: []byte("leak")})
	must(t, err)
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	seen := fmt.Sprintf("%v %+v %+v %v %v %+v", lines, letters[0].Reason, *rec, trial.Lines, trial.Err, log.String())
	if strings.Contains(seen, token) || strings.Contains(seen, key) || !strings.Contains(lines[0].Text, "it is [secret TOKEN]") || !strings.Contains(letters[0].Reason, "with [secret TOKEN] and [secret KEY]") {
		t.Errorf("a secret is shown, or is not named:\n%s", seen)
	}

	for what, tc := range map[string]struct {
		tenant       string
		env, secrets []string
		want         string
	}{
		"another tenant":        {"other", nil, []string{"TOKEN"}, "secret TOKEN: not granted to the tenant other by the host's configuration: it has none"},
		"none":                  {"", nil, []string{"TOKEN"}, "not granted to workers without a tenant"},
		"a misspelt name":       {"acme", []string{"GREETINGS"}, nil, "it has GREETING, REGION"},
		"a secret as variable":  {"acme", []string{"TOKEN"}, nil, "variable TOKEN: not granted"},
		"all that are wrong":    {"acme", []string{"A"}, []string{"B"}, "secret B"},
		"a variable for others": {"other", []string{"GREETING"}, nil, ""},
	} {
		other := spec
		other.ID, other.Tenant, other.Env, other.Secrets = "o", tc.tenant, tc.env, tc.secrets
		switch _, err := h.Diff(t.Context(), other); {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case tc.want != "" && (!errors.Is(err, host.ErrNotGranted) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
	for name, want := range map[string]string{"GONE": "no such file", "A B": "not a name of a variable", "LIFECYCLE_X": "not beginning with LIFECYCLE_"} {
		other := spec
		other.ID, other.Secrets = "o", []string{name}
		if _, err := h.Diff(t.Context(), other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the secret %s: %v", name, err)
		}
	}
	// A host that grants less cannot run it, and says why.
	must(t, os.Remove(file))
	must(t, h.StopWorker(t.Context(), "w"))
	must(t, h.StartWorker(t.Context(), "w"))
	r.publish("work.w", "y")
	r.eventually("it is failed", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.State == host.StateFailed && strings.Contains(rec.Reason, "secret TOKEN")
	})
}

// TestGrantsAreValidated checks that a configuration with a secret in place of its
// source is refused, and that the error does not have it.
func TestGrantsAreValidated(t *testing.T) {
	r := newRig(t)
	for secret, name := range map[string]string{"hunter2": "PASSWORD", "hunter2:x": "PASSWORD", "env:": "PASSWORD", "env:X": "A B"} {
		cfg := host.Config{Grants: map[string]host.Grant{"acme": {Secrets: map[string]string{name: secret}}}}
		_, err := host.New(r.js, cfg)
		if err == nil || !strings.Contains(err.Error(), "grants.acme.secrets") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", secret, err)
		}
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
