package config

import (
	"context"
	"fmt"
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
