// Command hosted is a text pipeline whose workers arrive while it runs, in three
// languages: a Starlark worker cleans lines, a JavaScript worker counts words
// with its own state, and a Python worker writes the report (in Starlark
// where there is no python3). Each is deployed by a spec; the second one asks for a
// variable and a secret by name. Messages flow all the time. One worker is updated;
// an update of another does not compile and changes nothing; a third one
// compiles, fails and fills the dead letters, is rolled back, and its
// dead letters are handled after all. At the end the story looks at the state and
// the log of a worker, and tries its code with a message that commits nothing.
//
//	go run ./examples/hosted
//
// NATS runs inside this process, on a folder that is removed at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

func main() {
	host.EngineMain(languages()...) // the workers' code runs in children of this process
	lifecycle.Main(func() error { return run(context.Background(), os.Stdout) })
}

// languages are the engines that run in this program's children. Python brings its
// own interpreter.
func languages() []engine.Engine { return []engine.Engine{starlark.New(), js.New()} }

func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "hosted-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.Connect(ctx, broker.Config{
		StoreDir: dir, Sync: broker.SyncInterval, Logger: quiet,
		Streams: []jetstream.StreamConfig{{Name: "TEXT", Subjects: []string{"text.>"}}},
	})
	if err != nil {
		return err
	}
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("hunter2-of-acme\n"), 0o600); err != nil {
		return err
	}
	h, report, err := newHost(b, quiet, token)
	if err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{Name: "hosted", HealthAddr: "127.0.0.1:0"}, lifecycle.WithLogger(quiet))
	if err != nil {
		return err
	}
	p := &pipeline{host: h, js: b.JetStream(), out: out, report: report}
	told, stop := context.WithCancel(ctx)
	defer stop()
	app.Add(h).
		Probe("hosted", h).
		OnDrain("hosted", h).
		Actor("story", func() error { return p.story(told) }, func(error) { stop() }).
		OnShutdown("nats", b.Close)
	return app.Run(ctx)
}

// newHost returns a host, and the worker that writes the report in an available
// language.
func newHost(b *broker.Broker, log *slog.Logger, token string) (*host.Host, host.Spec, error) {
	report := host.Spec{ID: "report", Topic: "text.counted", OutputTopic: "text.report"}
	engines := languages()
	if py, err := python.New(); err == nil {
		engines = append(engines, py)
		report.MIMEType, report.Code = "text/x-python", []byte(reportPython)
	} else {
		report.MIMEType, report.Code = "text/x-starlark", []byte(reportStarlark)
	}
	registry, err := engine.NewRegistry(engines...)
	if err != nil {
		return nil, report, err
	}
	h, err := host.New(b.JetStream(), host.Config{
		Engines: registry, Logger: log, RetryBase: 10 * time.Millisecond, MaxRetries: 1,
		Grants: map[string]host.Grant{ // what workers may ask for by name
			"acme": {Env: map[string]string{"CUSTOMER": "acme"}, Secrets: map[string]string{"TOKEN": "file:" + token}},
		},
	})
	return h, report, err
}

const (
	cleanV1 = `
def handle(message):
    return " ".join(message.text.split())
`
	cleanV2 = `
def handle(message):
    return " ".join(message.text.lower().split())
`
	count = `
function handle(message) {
    const words = message.text.split(" ").length;
    const total = Number(state.get("total") ?? 0) + words;
    state.put("total", String(total)); // once for each message, however often that is delivered
    console.log("counted " + words + " words for " + env.CUSTOMER + " with the token " + env.TOKEN);
    return JSON.stringify({line: message.text, words, total});
}
`
	// It compiles, but does not handle lines in capitals.
	countWrong = `
function handle(message) {
    const words = message.text.match(/^[a-z ]+$/).length;
    return JSON.stringify({line: message.text, words, total: 0});
}
`
	reportPython = `
import json

def handle(message):
    c = json.loads(message.text)
    return "%3d words so far, %d of them in %r" % (c["total"], c["words"], c["line"])
`
	reportStarlark = `
def handle(message):
    c = json.decode(message.text)
    return "%d words so far, %d of them in %r" % (c["total"], c["words"], c["line"])
`
)

// pipeline runs the example.
type pipeline struct {
	host   *host.Host
	js     jetstream.JetStream
	out    io.Writer
	report host.Spec
	sent   int
}

func (p *pipeline) story(ctx context.Context) error {
	steps := []func(context.Context) error{p.create, p.update, p.broken, p.wrong, p.history, p.look}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil // the host was stopped
			}
			return err
		}
	}
	return nil
}

func (p *pipeline) say(format string, args ...any) { fmt.Fprintf(p.out, "--- "+format+"\n", args...) }

func (p *pipeline) create(ctx context.Context) error {
	p.say("three workers: clean (Starlark), count (JavaScript), report (%s)", strings.TrimPrefix(p.report.MIMEType, "text/x-"))
	for _, spec := range []host.Spec{
		{ID: "clean", MIMEType: "text/x-starlark", Topic: "text.raw", OutputTopic: "text.clean", Code: []byte(cleanV1)},
		{
			ID: "count", Tenant: "acme", MIMEType: "text/javascript", Topic: "text.clean", OutputTopic: "text.counted", Code: []byte(count),
			Env: []string{"CUSTOMER"}, Secrets: []string{"TOKEN"}, Limits: engine.Limits{Time: 10 * time.Second},
		},
		p.report,
	} {
		spec.By = "the example"
		if _, err := p.host.Apply(ctx, spec); err != nil {
			return err
		}
		plan, err := p.host.Apply(ctx, spec) // a second time changes nothing
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "%s is as its spec says: %d differences\n", spec.ID, len(plan.Differences))
	}
	spec := host.Spec{ID: "spy", Tenant: "other", MIMEType: "text/javascript", Topic: "text.clean", Code: []byte(count), Secrets: []string{"TOKEN"}}
	if _, err := p.host.Apply(ctx, spec); !errors.Is(err, host.ErrNotGranted) {
		return fmt.Errorf("a worker of another tenant has the secret: %w", err)
	}
	p.say("a worker of another tenant does not get the secret")
	return p.send(ctx, 3, "  Some   Lines of TEXT ", "and  another   one", "three")
}

func (p *pipeline) update(ctx context.Context) error {
	p.say("clean is updated: everything in lower case from now on")
	if err := p.host.LoadCodeFromContent(ctx, "clean", []byte(cleanV2), host.By("ann", "lower case")); err != nil {
		return err
	}
	return p.send(ctx, 1, "NO MORE   SHOUTING")
}

func (p *pipeline) broken(ctx context.Context) error {
	err := p.host.LoadCodeFromContent(ctx, "count", []byte("function handle(message) {"), host.By("bob", ""))
	if !errors.Is(err, engine.ErrBadCode) {
		return fmt.Errorf("code that does not compile was accepted: %w", err)
	}
	p.say("an update of count does not compile, and count goes on: %v", err)
	return p.send(ctx, 1, "as if nothing had been")
}

func (p *pipeline) wrong(ctx context.Context) error {
	p.say("another one compiles, and cannot count digits")
	before, err := p.host.Get(ctx, "count")
	if err != nil {
		return err
	}
	if err := p.host.LoadCodeFromContent(ctx, "count", []byte(countWrong), host.By("bob", "faster")); err != nil {
		return err
	}
	if err := p.send(ctx, 0, "catch 22", "fahrenheit 451"); err != nil {
		return err
	}
	var letters []*host.DeadLetter
	err = await(ctx, func() (bool, error) {
		letters, err = p.host.DeadLetters(ctx, "count", 0, 10)
		return len(letters) >= 2, err
	})
	if err != nil {
		return err
	}
	for _, d := range letters {
		fmt.Fprintf(p.out, "dead letter %d: %q after %d attempts: %.60s\n", d.Seq, d.Data, d.Attempts, d.Reason)
	}
	if err := p.host.Rollback(ctx, "count", before.Digest, host.By("ann", "it cannot count digits")); err != nil {
		return err
	}
	n, err := p.host.Redrive(ctx, "count")
	if err != nil {
		return err
	}
	p.say("rolled back, and %d dead letters redriven", n)
	return p.send(ctx, 2)
}

func (p *pipeline) history(ctx context.Context) error {
	p.say("the history of count")
	versions, err := p.host.History(ctx, "count")
	if err != nil {
		return err
	}
	for _, v := range versions {
		fmt.Fprintf(p.out, "generation %d: %s, %s, by %s\n", v.Generation, v.Digest[:12], v.Source, v.By)
	}
	for _, t := range p.host.Tallies() {
		fmt.Fprintf(p.out, "%s generation %d: %d handled, %d failures, %d dead letters\n", t.Worker, t.Generation, t.Succeeded, t.Failed, t.DeadLetters)
	}
	return nil
}

// look shows what count has stored and printed, and what a message would cause.
func (p *pipeline) look(ctx context.Context) error {
	p.say("the state and the log of count")
	var total *host.Value
	err := await(ctx, func() (_ bool, err error) {
		total, err = p.host.Value(ctx, "count", "total")
		if errors.Is(err, host.ErrNoKey) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	lines, err := p.host.Logs(ctx, "count", 0, 1)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "total is %s\n%s\n", total.Data, lines[0].Text)
	trial, err := p.host.Test(ctx, "count", host.TestRequest{Data: []byte("what if")})
	if err != nil {
		return err
	}
	for _, c := range trial.Changes {
		fmt.Fprintf(p.out, "a test would write %s = %s and publish to %s\n", c.Key, c.Data, trial.Outputs[0].Topic)
	}
	return nil
}

// send publishes lines and prints as many reports as are expected.
func (p *pipeline) send(ctx context.Context, reports int, lines ...string) error {
	for _, line := range lines {
		if _, err := p.js.Publish(ctx, "text.raw", []byte(line)); err != nil {
			return err
		}
	}
	stream, err := p.js.Stream(ctx, "TEXT")
	if err != nil {
		return err
	}
	for range reports {
		err := await(ctx, func() (bool, error) {
			m, err := stream.GetMsg(ctx, uint64(p.sent+1), jetstream.WithGetMsgSubject("text.report"))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return false, nil
			}
			if err == nil {
				p.sent = int(m.Sequence)
				fmt.Fprintf(p.out, "%d: %s\n", m.Sequence, m.Data)
			}
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// await asks again and again until done returns true or an error.
func await(ctx context.Context, done func() (bool, error)) error {
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
