package lifecycle_test

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

func TestReconfigureChangesTheDrainOfARunningApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := lifecycletest.NewListener()
		app := lifecycletest.New(t, lifecycle.Config{ShutdownGrace: 8 * time.Second})
		app.Serve("http", &http.Server{Handler: lifecycletest.Hold(nil)}, lifecycle.WithListener(ln)).
			OnDrain("forever", lifecycle.DrainFunc(func(ctx context.Context) error { <-ctx.Done(); return nil }))
		if _, _, err := app.Reconfigure(app.Config()); !errors.Is(err, lifecycle.ErrReloadRefused) {
			t.Errorf("before Run: %v, want ErrReloadRefused", err)
		}
		app.Start()
		cfg := app.Config()
		cfg.DrainInterval, cfg.ShutdownGrace, cfg.Linger, cfg.AcceptQuiet = 20*time.Second, 40*time.Second, 0, 0
		cfg.HealthAddr, cfg.ProbeTimeout = ":1", time.Second
		changed, kept, err := app.Reconfigure(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"DrainInterval", "Linger", "ShutdownGrace"}; !slices.Equal(changed, want) {
			t.Errorf("changed are %q, want %q", changed, want)
		}
		if want := []string{"HealthAddr", "ProbeTimeout"}; !slices.Equal(kept, want) {
			t.Errorf("kept are %q, want %q", kept, want)
		}
		if got := app.Config(); got.DrainInterval != 20*time.Second || got.Linger != 5*time.Second || got.HealthAddr == ":1" {
			t.Errorf("the configuration is %+v", got)
		}
		conn, err := ln.Dial(t.Context()) // stays open; the App waits for it until Linger is over
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		app.Stop(nil)
		app.Await(lifecycle.PhaseDraining)
		if _, _, err := app.Reconfigure(cfg); !errors.Is(err, lifecycle.ErrReloadRefused) {
			t.Errorf("while draining: %v, want ErrReloadRefused", err)
		}
		app.WantClean()
		if took := app.When("app stopping") - app.When("app draining"); took != 25*time.Second {
			t.Errorf("window and linger took %v, want 20s and 5s", took)
		}
	})
}

func TestReconfigureChangesNothingWhenItDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycletest.New(t, lifecycle.Config{HookSlice: 4 * time.Second})
		for _, name := range []string{"a", "b", "c", "d"} {
			app.OnShutdown(name, func(context.Context) error { return nil })
		}
		app.Start()
		before := app.Config()
		for want, spoil := range map[string]func(*lifecycle.Config){
			"DrainMin (10s) is longer than the window": func(c *lifecycle.Config) { c.DrainMin = 10 * time.Second; c.DrainQuiet = time.Second },
			"4 shutdown hooks do not get out of":       func(c *lifecycle.Config) { c.MinSlice = 2 * time.Second },
			"TerminationGrace) gives 3s":               func(c *lifecycle.Config) { c.TerminationGrace = 3 * time.Second },
		} {
			cfg := app.Config()
			spoil(&cfg)
			changed, kept, err := app.Reconfigure(cfg)
			var fault *lifecycle.ConfigError
			if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &fault) || changed != nil || kept != nil {
				t.Errorf("changed %q, kept %q, error %v, want one that says %s", changed, kept, err, want)
			}
			if app.Config() != before {
				t.Errorf("%s: the configuration has changed to %+v", want, app.Config())
			}
		}
		app.Stop(nil)
		app.WantClean()
	})
}

// A pod's grace cannot change while the pod lives. So a reload takes over only times that
// fit into the grace with which the process was started.
func TestReconfigureStaysWithinTheGraceOfTheStart(t *testing.T) {
	for name, tt := range map[string]struct {
		start  lifecycle.Config
		inside bool // of a pod
		change func(*lifecycle.Config)
		want   string // "" when the App takes it over
	}{
		"the pod's grace": {
			start:  lifecycle.Config{TerminationGrace: 30 * time.Second},
			change: func(c *lifecycle.Config) { c.TerminationGrace, c.DrainInterval = 50*time.Second, 15*time.Second },
			want:   "with what stays while the process runs, such as the grace of its pod: config: PreStop + DrainInterval + ShutdownGrace + margin is 0s + 15s + 20s + 2s = 37s, and the pod's terminationGracePeriodSeconds (TerminationGrace) gives 30s",
		},
		"the liveness probe's grace": {
			start:  lifecycle.Config{TerminationGrace: time.Minute, LivenessGrace: 28 * time.Second},
			change: func(c *lifecycle.Config) { c.LivenessGrace, c.ShutdownGrace = time.Minute, 22*time.Second },
			want:   "= 29s, and the liveness probe's terminationGracePeriodSeconds (LivenessGrace) gives 28s",
		},
		"no hook any more": { // the pod still has it
			start:  lifecycle.Config{TerminationGrace: 35 * time.Second, PreStop: 5 * time.Second},
			change: func(c *lifecycle.Config) { c.PreStop, c.DrainInterval = 0, 10*time.Second },
			want:   "5s + 10s + 20s + 2s = 37s, and the pod's terminationGracePeriodSeconds (TerminationGrace) gives 35s",
		},
		"a grace that was not declared": {
			inside: true,
			change: func(c *lifecycle.Config) { c.TerminationGrace, c.DrainInterval = 50*time.Second, 6*time.Second },
			want:   "TerminationGrace was not declared at the start, so a stop may not take longer than it took then: config: PreStop + DrainInterval + ShutdownGrace + margin is 0s + 6s + 20s + 2s = 28s",
		},
		"within the grace": {
			start:  lifecycle.Config{TerminationGrace: 30 * time.Second},
			inside: true,
			change: func(c *lifecycle.Config) { c.DrainInterval = 8 * time.Second },
		},
		"within the times of the start": {
			inside: true,
			change: func(c *lifecycle.Config) { c.DrainInterval, c.ShutdownGrace = 10*time.Second, 15*time.Second },
		},
		"outside Kubernetes": {
			change: func(c *lifecycle.Config) { c.DrainInterval = time.Hour },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", map[bool]string{true: "10.0.0.1"}[tt.inside])
			synctest.Test(t, func(t *testing.T) {
				app := lifecycletest.New(t, tt.start)
				app.Start()
				before := app.Config()
				cfg := before
				tt.change(&cfg)
				changed, _, err := app.Reconfigure(cfg)
				var fault *lifecycle.ConfigError
				switch {
				case tt.want == "" && (err != nil || len(changed) == 0):
					t.Errorf("changed %q, error %v, want the change", changed, err)
				case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &fault)):
					t.Errorf("changed %q, error %v, want one that says %q", changed, err, tt.want)
				case tt.want != "" && app.Config() != before:
					t.Errorf("the configuration has changed to %+v", app.Config())
				}
				app.Stop(nil)
				app.WantClean()
			})
		})
	}
}

// Settings that belong to the pod stay as they were at the start, until the pod is
// replaced.
func TestReconfigureKeepsWhatBelongsToThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycletest.New(t, lifecycle.Config{TerminationGrace: time.Minute, PreStop: time.Second})
		app.Start()
		cfg := app.Config()
		cfg.TerminationGrace, cfg.LivenessGrace, cfg.StartupGrace, cfg.PreStop = 2*time.Minute, time.Minute, time.Minute, 3*time.Second
		changed, kept, err := app.Reconfigure(cfg)
		if want := []string{"TerminationGrace", "LivenessGrace", "StartupGrace", "PreStop"}; err != nil || changed != nil || !slices.Equal(kept, want) {
			t.Errorf("changed %q, kept %q, %v, want kept %q", changed, kept, err, want)
		}
		if got := app.Config(); got.TerminationGrace != time.Minute || got.PreStop != time.Second {
			t.Errorf("the configuration is %+v", got)
		}
		app.Stop(nil)
		app.WantClean()
	})
}

// The App does not show the token of its configuration. A Reconfigure with the same token
// changes nothing.
func TestReconfigureRecognisesTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycletest.New(t, lifecycle.Config{AdminToken: "open-sesame-12345"})
		app.Start()
		for token, want := range map[lifecycle.Secret][]string{"": nil, "open-sesame-12345": nil, "something-else-678": {"AdminToken"}} {
			cfg := app.Config()
			cfg.AdminToken = token
			changed, kept, err := app.Reconfigure(cfg)
			if err != nil || changed != nil || !slices.Equal(kept, want) {
				t.Errorf("with %q: changed %q, kept %q, %v; want kept %q", string(token), changed, kept, err, want)
			}
			if app.Config().AdminToken != "" {
				t.Error("the App shows its token")
			}
		}
		app.Stop(nil)
		app.WantClean()
	})
}

func TestReconfigureAndStopAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := lifecycletest.New(t, lifecycle.Config{})
		app.Start()
		cfg := app.Config()
		go func() {
			for i := range 100 {
				cfg.ShutdownGrace = time.Duration(20+i) * time.Second
				if _, _, err := app.Reconfigure(cfg); err != nil {
					return
				}
			}
		}()
		app.Stop(nil)
		// Whichever phase the App is in, the stop has begun.
		if _, _, err := app.Reconfigure(app.Config()); !errors.Is(err, lifecycle.ErrReloadRefused) {
			t.Errorf("after the request to stop: %v, want ErrReloadRefused", err)
		}
		app.WantClean()
	})
}

func TestEveryFieldSaysWhetherItIsLive(t *testing.T) {
	live := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[lifecycle.Config]()) {
		tag, tagged := f.Tag.Lookup("reload")
		if live[f.Name] = tagged; tagged && tag != "live" {
			t.Errorf("%s has the tag reload:%q, want live or none", f.Name, tag)
		}
	}
	if !live["DrainInterval"] || !live["ExitOnSignal"] || live["HealthAddr"] || live["AdminToken"] || live["TerminationGrace"] || live["PreStop"] {
		t.Errorf("live are %v", live)
	}
}
