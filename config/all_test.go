package config

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
)

// All has every key with its source, also what no source gives, and what waits for the next
// start. A change that is refused changes nothing in it.
func TestAllHasEveryKeyWithItsSource(t *testing.T) {
	path := write(t, "service.yaml", "poll: 2s\ntoken: hunter2\nlifecycle: {health_addr: \"off\", shutdown_grace: 20s}\n")
	live, _ := openLive(t, path, "SERVICE_WORKERS=7")
	find := func(key string) (found Setting) {
		t.Helper()
		for _, s := range live.All() {
			if s.Key == key {
				return s
			}
		}
		t.Fatalf("All has no %s", key)
		return found
	}
	want := func(key, text string) {
		t.Helper()
		s := find(key)
		if got := fmt.Sprintf("%s from %s, in force %q", s.Value, strings.TrimPrefix(s.Source, path), s.InForce); got != text {
			t.Errorf("%s is %s\nwant %s", key, got, text)
		}
	}
	keys, err := Keys[service]("service.yaml")
	if err != nil || len(live.All()) != len(keys) {
		t.Errorf("All has %d keys, want %d: %v", len(live.All()), len(keys), err)
	}
	if text := fmt.Sprint(live.All()); strings.Contains(text, "hunter2") {
		t.Errorf("it has a secret: %s", text)
	}
	want("poll", `2s from :1, in force ""`)
	want("token", `[secret] from :2, in force ""`)
	want("workers", `7 from environment SERVICE_WORKERS, in force ""`)
	want("lifecycle.drain_interval", lifecycle.Config{}.WithDefaults().DrainInterval.String()+` from default, in force ""`)

	app, err := lifecycle.New(live.Get().Lifecycle)
	if err != nil {
		t.Fatal(err)
	}
	live.Attach(app)
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() { app.Stop(nil); <-done }()
	<-app.Reached(lifecycle.PhaseRunning)
	overwrite(t, path, "poll: 3s\nlifecycle: {health_addr: \":1\", shutdown_grace: 20s}\n")
	if err := app.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("poll", `3s from :1, in force ""`)
	want("token", `none from default, in force ""`)
	want("lifecycle.health_addr", `":1" from :2, in force "\"off\""`)
	before := fmt.Sprint(live.All())
	overwrite(t, path, "poll: [1]\n")
	if err := app.Reload(t.Context()); err == nil || fmt.Sprint(live.All()) != before {
		t.Errorf("after a refused reload (%v): %v", err, live.All())
	}
}

// silent is a type whose zero value cannot say what it is.
type silent struct{ *url.URL }

func (s *silent) UnmarshalText(text []byte) (err error) {
	s.URL, err = url.Parse(string(text))
	return err
}

// A key without a value, whose type has no words for that, is "none".
func TestAllOfAValueThatPanics(t *testing.T) {
	type settings struct{ Endpoint silent }
	live, err := Open[settings](write(t, "s.yaml", "{}\n"), WithArgs(nil), WithEnviron(nil))
	if err != nil {
		t.Fatal(err)
	}
	if all := live.All(); len(all) != 1 || all[0].Value != "none" {
		t.Errorf("%+v", all)
	}
	live, err = Open[settings](write(t, "s.yaml", "endpoint: https://example.com/x\n"), WithArgs(nil), WithEnviron(nil))
	if err != nil {
		t.Fatal(err)
	}
	if all := live.All(); len(all) != 1 || all[0].Value != "https://example.com/x" {
		t.Errorf("%+v", all)
	}
}

// While a reload is checked, the first too, All has what is in force.
func TestAllDuringAReload(t *testing.T) {
	path := write(t, "service.yaml", "poll: 2s\n")
	live, _ := openLive(t, path)
	poll := func() string {
		for _, s := range live.All() {
			if s.Key == "poll" {
				return s.Value
			}
		}
		return ""
	}
	var during string
	live.Check(func(_, _ service) error {
		during = poll()
		return errors.New("refused")
	})
	overwrite(t, path, "poll: 3s\n")
	if err := live.Reload(t.Context()); err == nil {
		t.Error("it was not refused")
	}
	if during != "2s" || poll() != "2s" {
		t.Errorf("during the check poll is %q, and %q after it; want 2s", during, poll())
	}
}
