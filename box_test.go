package lifecycle_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// hangs is a function that does not return before the test ends.
func hangs(t *testing.T) func(context.Context) error {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return func(context.Context) error { hangHere(release); return nil }
}

// hangHere is the function that the stacks of a black box name.
func hangHere(release <-chan struct{}) { <-release }

// boxes returns the black boxes in a folder, the oldest first.
func boxes(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "blackbox-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// content returns a file of a box.
func content(t *testing.T, box, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(box, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// traced returns the events of a box's trace, as the tool for traces reads it.
func traced(t *testing.T, box string) string {
	t.Helper()
	out, err := exec.Command("go", "tool", "trace", "-d=parsed", filepath.Join(box, "trace.out")).CombinedOutput()
	if err != nil {
		t.Errorf("go tool trace: %v\n%.500s", err, out)
	}
	return string(out)
}

// R60: whatever is abandoned leaves a black box that names it, which the report names.
func TestBlackBox(t *testing.T) {
	for name, tc := range map[string]struct {
		add  func(t *testing.T, app *lifecycle.App)
		why  string
		name string // of the label
	}{
		"a hook": {
			add: func(t *testing.T, app *lifecycle.App) { app.OnShutdown("flush", hangs(t)) },
			why: "hook flush was abandoned", name: "flush",
		},
		"a drainer": {
			add: func(t *testing.T, app *lifecycle.App) { app.OnDrain("jobs", lifecycle.DrainFunc(hangs(t))) },
			why: "drainer jobs was abandoned", name: "jobs",
		},
		"a unit": {
			add: func(t *testing.T, app *lifecycle.App) { app.Go("poller", hangs(t)) },
			why: "unit poller was abandoned", name: "poller",
		},
		"a request": {
			add: func(t *testing.T, app *lifecycle.App) {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				hang := hangs(t)
				arrived := make(chan struct{})
				app.Serve("web", &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					close(arrived)
					_ = hang(context.Background())
				})}, lifecycle.WithListener(ln))
				app.Go("client", func(ctx context.Context) error {
					go func() {
						if resp, err := http.Get("http://" + ln.Addr().String()); err == nil {
							resp.Body.Close()
						}
					}()
					<-arrived
					<-ctx.Done()
					return nil
				})
			},
			why: "server web: 1 requests were cut",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "boxes")
			app, err := lifecycle.New(lifecycle.Config{
				Name:          "a/service",
				HealthAddr:    lifecycle.HealthOff,
				DrainInterval: 300 * time.Millisecond,
				ShutdownGrace: 16 * time.Second,
				Linger:        time.Second,
				UnitSlice:     time.Second,
				HookSlice:     10 * time.Second,
				MinSlice:      4 * time.Second,
				BlackBoxDir:   dir,
			})
			if err != nil {
				t.Fatal(err)
			}
			app.OnShutdown("the rest of the stop", func(ctx context.Context) error {
				for len(boxes(t, dir)) == 0 && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return nil
			})
			tc.add(t, app)
			app.Go("ends", func(context.Context) error {
				time.Sleep(200 * time.Millisecond)
				app.Stop(nil)
				return nil
			})
			if err := app.Run(t.Context()); err == nil {
				t.Error("Run returned no error")
			}
			box := app.Report().BlackBox
			if found := boxes(t, dir); len(found) == 0 || found[len(found)-1] != box {
				t.Fatalf("the report names %q, and the folder has %q", box, found)
			}
			if why := content(t, box, "why.json"); !strings.Contains(why, tc.why) || !strings.Contains(why, `"phase"`) {
				t.Errorf("why.json is %s", why)
			}
			stacks := content(t, box, "goroutines.txt")
			if !strings.Contains(stacks, "hangHere") || !strings.Contains(stacks, `"lifecycle.name":"`+tc.name) {
				t.Errorf("the stacks do not have the function with the label of %s:\n%s", tc.name, stacks)
			}
			if events := traced(t, box); !strings.Contains(events, tc.why) || !strings.Contains(events, "hangHere") {
				t.Errorf("the trace does not say what was abandoned, and where:\n%.2000s", events)
			}
		})
	}
}

// A clean stop leaves no box. A folder that cannot be made, or one that is full of other things,
// costs the box alone.
func TestBlackBoxOfACleanStop(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{filepath.Join(dir, "boxes"), filepath.Join(file, "boxes")} {
		app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off, BlackBoxDir: folder})
		if err != nil {
			t.Fatal(err)
		}
		app.Stop(nil)
		if err := app.Run(t.Context()); err != nil || app.Report().BlackBox != "" || len(boxes(t, folder)) > 0 {
			t.Errorf("%v, %q", err, app.Report().BlackBox)
		}
	}
}

// A program that has a flight recorder gives it to the App, and goes on with it. Without that
// the box has no trace. The folder keeps the newest boxes.
func TestBlackBoxSharesTheFlightRecorder(t *testing.T) {
	flight := trace.NewFlightRecorder(trace.FlightRecorderConfig{})
	if err := flight.Start(); err != nil {
		t.Fatal(err)
	}
	defer flight.Stop()
	dir := t.TempDir()
	// A process that was killed while it wrote a box has left it.
	left := filepath.Join(dir, ".unfinished-blackbox-20200101T000000.000Z-lifecycle-1")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		opts := []lifecycle.Option{lifecycle.WithFlightRecorder(flight)}
		if i == 9 {
			opts = nil
		}
		app, err := lifecycle.New(lifecycle.Config{
			HealthAddr:    lifecycle.HealthOff,
			DrainInterval: 300 * time.Millisecond,
			ShutdownGrace: time.Minute, // for a busy machine to write the box
			BlackBoxDir:   dir,
		}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		app.OnDrain("jobs", lifecycle.DrainFunc(hangs(t)))
		app.Go("ends", func(context.Context) error { app.Stop(nil); return nil })
		if err := app.Run(t.Context()); !errors.As(err, new(*lifecycle.AbandonedError)) {
			t.Errorf("Run: %v", err)
		}
		if !flight.Enabled() {
			t.Fatal("the App has stopped the program's recorder")
		}
	}
	all := boxes(t, dir)
	if len(all) != 8 {
		t.Errorf("there are %d boxes", len(all))
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the oldest box, which is not finished, is still there: %v", err)
	}
	for i, box := range all {
		_, err := os.Stat(filepath.Join(box, "trace.out"))
		if hasTrace := err == nil; hasTrace != (i < 7) {
			t.Errorf("box %d has a trace: %v", i, hasTrace)
		}
	}
	if app, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithFlightRecorder(nil)); err == nil {
		t.Errorf("New took no recorder: %v", app)
	}
}
