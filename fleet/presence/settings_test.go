package presence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/worker"
)

type configured struct {
	Addr      string
	DSN       string `koanf:"dsn" secret:"true"`
	Password  string // not marked
	Upstream  string
	Retries   int
	Lifecycle lifecycle.Config
}

func (configured) WithDefaults() configured { return configured{Addr: ":8080", Retries: 3} }

// An operator reads the whole configuration of a process with the source of each value, and
// no secret: neither one that is marked nor one that its name or its form betrays.
func TestOperatorReadsTheConfiguration(t *testing.T) {
	js := nats(t)
	path := filepath.Join(t.TempDir(), "service.yaml")
	yaml := "addr: :1\ndsn: hunter2\npassword: hunter2\nupstream: https://ada:hunter2@example.com/x\nlifecycle: {drain_interval: 0s, health_addr: \"off\"}\n"
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	live, err := config.Open[configured](path, config.WithEnviron([]string{"SERVICE_ADDR=:2", "SERVICE_PASSWORD=hunter2x"}), config.WithArgs([]string{"-addr=:3"}), config.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	app, id, _ := start(t, js, presence.Config{Settings: live.All}, func(app *lifecycle.App) { live.Attach(app) })
	f := open(t, js, presence.Config{CommandTimeout: time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	overwrite(t, path, strings.Replace(yaml, "health_addr: \"off\"", "health_addr: \":1\"", 1))
	if err := app.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, "addr: [1]\npassword: hunter2\n")
	if err := app.Reload(t.Context()); err == nil {
		t.Fatal("a wrong file is taken over")
	}
	got, err := settingsOf(t, f, id)
	if err != nil || got.Truncated {
		t.Fatalf("%v, truncated %v", err, got.Truncated)
	}
	if text := fmt.Sprint(got); strings.Contains(text, "hunter2") {
		t.Errorf("it has a secret: %s", text)
	}
	by := map[string]presence.Setting{}
	for _, s := range got.List {
		by[s.Key] = s
	}
	for key, want := range map[string]string{
		"addr":                     `":3" from flag -addr, not [` + path + `:1: ":1" environment SERVICE_ADDR: ":2"], in force ""`,
		"dsn":                      `[secret] from ` + path + `:2, not [], in force ""`,
		"password":                 `[secret] from environment SERVICE_PASSWORD, not [` + path + `:3: [secret]], in force ""`,
		"upstream":                 `"https://[removed]@example.com/x" from ` + path + `:4, not [], in force ""`,
		"retries":                  `3 from default, not [], in force ""`,
		"lifecycle.shutdown_grace": `20s from default, not [], in force ""`,
		"lifecycle.drain_interval": `off from ` + path + `:5, not [], in force ""`,
		"lifecycle.health_addr":    `":1" from ` + path + `:5, not [], in force "\"off\""`,
	} {
		s := by[key]
		if text := fmt.Sprintf("%s from %s, not %v, in force %q", s.Value, s.Source, s.Lost, s.InForce); text != want {
			t.Errorf("%s is %s\nwant %s", key, text, want)
		}
	}
	if len(got.Reloads) != 2 || got.Reloads[1].Result != lifecycle.ResultFailed || !strings.Contains(got.Reloads[1].Error, "addr is a list") {
		t.Errorf("the reloads are %+v", got.Reloads)
	}
	if c := commands(t, f, id, 1)[0]; c.Name != "config" || c.Who != "ada" {
		t.Errorf("the command is %+v", c)
	}
}

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is too large for an answer is left out, and the answer says so.
func TestLargeConfiguration(t *testing.T) {
	js := nats(t)
	value, lost := strings.Repeat("<", 5000), slices.Repeat([]string{"file: " + strings.Repeat("\x00", 5000)}, 20)
	var list []presence.Setting
	for i := range 5000 {
		list = append(list, presence.Setting{Key: fmt.Sprintf("key%d", i), Value: value, Source: "default", Lost: lost})
	}
	_, id, _ := start(t, js, presence.Config{Settings: func() []presence.Setting { return list }}, nil)
	f := open(t, js, presence.Config{CommandTimeout: 5 * time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	got, err := settingsOf(t, f, id)
	if err != nil || !got.Truncated || len(got.List) == 0 || len(got.List) >= 5000 || len(got.List[0].Value) > 1024 || len(got.List[0].Lost) > 8 {
		t.Errorf("%d settings, truncated %v, %v", len(got.List), got.Truncated, err)
	}
}

// A process that has no answer says what is missing; a function that panics or hangs harms
// no other command.
func TestConfigurationOfAProcessThatHasNone(t *testing.T) {
	js := nats(t)
	hang := make(chan struct{})
	defer close(hang)
	for what, test := range map[string]struct {
		settings func() []presence.Setting
		says     string
	}{
		"none":   {nil, "no presence.Config.Settings"},
		"panics": {func() []presence.Setting { panic("oh no") }, "oh no"},
		"hangs":  {func() []presence.Setting { <-hang; return nil }, "did not return"},
	} {
		_, id, _ := start(t, js, presence.Config{ID: what, Settings: test.settings}, nil)
		f := open(t, js, presence.Config{CommandTimeout: time.Minute})
		await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
		if _, err := f.Settings(t.Context(), id, "ada"); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := f.Stacks(t.Context(), id, "ada"); err != nil {
			t.Errorf("%s: then the stacks: %v", what, err)
		}
	}
}

// A supervised unit restarts; the journal and the announcement have who asked for it, and
// an operator's restart is not a crash.
func TestOperatorRestartsAUnit(t *testing.T) {
	js := nats(t)
	runs := make(chan string, 10)
	work := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { runs <- name; <-ctx.Done(); return ctx.Err() }
	}
	_, id, _ := start(t, js, presence.Config{}, func(app *lifecycle.App) {
		app.Supervise("poller", work("poller"), lifecycle.DefaultBackoff()).Go("plain", work("plain"))
	})
	f := open(t, js, presence.Config{CommandTimeout: time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	<-runs
	<-runs
	brokertest.Await(t, "an answer", func() bool { // the machine may be suspended for the two seconds
		phase, status, err := f.RestartUnit(t.Context(), id, "poller", "it lost its lease", "ada")
		if errors.Is(err, presence.ErrRefused) {
			return false // the restart before it goes on
		}
		if err != nil {
			t.Fatal(err)
		}
		return phase == "running" && status == "Running"
	})
	if got := <-runs; got != "poller" {
		t.Errorf("%s runs again", got)
	}
	p := await(t, f, id, "the restart", func(p presence.Process) bool { return len(p.Restarts) > 0 })
	if r := p.Restarts[0]; r.Unit != "poller" || r.Who != "ada" || r.Cause != "it lost its lease (asked by ada)" {
		t.Errorf("the restart is %+v", r)
	}
	if c := commands(t, f, id, 1)[0]; c.Name != "restart-unit poller" || c.Who != "ada" || c.Cause != "it lost its lease" {
		t.Errorf("the command is %+v", c)
	}
	for _, kind := range []string{"command", "restart"} {
		brokertest.Await(t, "the event "+kind, func() bool {
			list, _, err := f.Events(t.Context(), presence.EventQuery{Process: id, Kinds: []string{kind}, Limit: 10})
			return err == nil && len(list) > 0 && list[0].Who == "ada" && strings.Contains(list[0].Name, "poller")
		})
	}
	for unit, says := range map[string]string{"plain": "nothing supervises it", "nothing": "no child of that name", "poller/poller": "restart that", "": "no child", strings.Repeat("x", 2000): "too long"} {
		if _, _, err := f.RestartUnit(t.Context(), id, unit, "", "ada"); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v", unit, err)
		}
	}
}

// A secret that lies where a long text is cut does not leave the process.
func TestSecretsAtTheCut(t *testing.T) {
	for before := 990; before < 1024; before++ {
		url := strings.Repeat("x", before) + " amqp://svc:hunter2@broker/ " + strings.Repeat("y", 9000)
		got, truncated := presence.Shown([]presence.Setting{{Key: "brokers", Value: url, Source: url, Lost: []string{"file: " + url}}})
		if text := fmt.Sprint(got); !truncated || strings.Contains(text, "hunt") || len(got[0].Value) > 1024 {
			t.Fatalf("after %d bytes: %s", before, text)
		}
	}
}

// The second of two who ask for a restart is refused while the unit stops for the first: the
// restart is the first one's.
func TestARefusedRestartTakesNothing(t *testing.T) {
	js := nats(t)
	stop, runs := make(chan struct{}), make(chan struct{}, 10)
	pool := worker.NewSupervisor("pool", worker.SupervisorConfig{Children: []worker.Spec{worker.FuncSpec("w1", func(ctx context.Context) error {
		runs <- struct{}{}
		<-ctx.Done()
		<-stop
		return ctx.Err()
	})}})
	_, id, _ := start(t, js, presence.Config{}, func(app *lifecycle.App) { app.Add(pool) })
	f := open(t, js, presence.Config{CommandTimeout: time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	<-runs
	if _, status, err := f.RestartUnit(t.Context(), id, "pool/w1", "first", "ada"); err != nil || status == "Running" {
		t.Fatalf("the first: %s, %v", status, err)
	}
	if _, _, err := f.RestartUnit(t.Context(), id, "pool/w1", "second", "bob"); !errors.Is(err, presence.ErrRefused) {
		t.Errorf("the second: %v", err)
	}
	close(stop)
	<-runs
	p := await(t, f, id, "the restart", func(p presence.Process) bool { return len(p.Restarts) > 0 })
	if r := p.Restarts[0]; r.Who != "ada" || r.Unit != "pool/w1" {
		t.Errorf("the restart is %+v", r)
	}
}

// A restart whose next run fails at once has happened: it is not refused.
func TestARestartIntoAFailure(t *testing.T) {
	js := nats(t)
	runs := make(chan struct{}, 100)
	var broken atomic.Bool
	_, id, _ := start(t, js, presence.Config{}, func(app *lifecycle.App) {
		app.Supervise("poller", func(ctx context.Context) error {
			runs <- struct{}{}
			if broken.Load() {
				return context.DeadlineExceeded
			}
			<-ctx.Done()
			return ctx.Err()
		}, lifecycle.DefaultBackoff())
	})
	f := open(t, js, presence.Config{CommandTimeout: time.Minute})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	<-runs
	broken.Store(true)
	phase, status, err := f.RestartUnit(t.Context(), id, "poller", "to see", "ada")
	if err != nil || phase != "running" || status == "" {
		t.Errorf("%s, %s, %v", phase, status, err)
	}
	<-runs
	if c := commands(t, f, id, 1)[0]; c.To != "done" || c.Who != "ada" {
		t.Errorf("the command is %+v", c)
	}
}

// settingsOf asks for the settings until the process had time for them: it gives the
// function a second.
func settingsOf(t *testing.T, f *presence.Fleet, id string) (got presence.Settings, err error) {
	t.Helper()
	brokertest.Await(t, "the settings", func() bool {
		got, err = f.Settings(t.Context(), id, "ada")
		return err == nil || !strings.Contains(err.Error(), "did not return")
	})
	return got, err
}
