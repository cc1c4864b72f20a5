package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/lifecycletest"

	"github.com/pleme-io/lifecycle-go"
)

// logBuffer keeps the log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// openLive opens a configuration with that content and a log.
func openLive(t *testing.T, path string, environ ...string) (*Live[service], *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	live, err := Open[service](path, WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(nil),
		WithLogger(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))), WithOutput(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return live, log
}

func overwrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// watch runs Watch until the test ends, in a bubble. Reloads are counted.
func watch(t *testing.T, live *Live[service]) (reloads *int, errs *[]error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	reloads, errs = new(int), new([]error)
	go func() {
		defer close(ended)
		if err := live.Watch(ctx, func(ctx context.Context) error {
			*reloads++
			err := live.Reload(ctx)
			*errs = append(*errs, err)
			return err
		}); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return reloads, errs
}

// pass lets a minute pass in a bubble.
func pass() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func mustRename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// keepTime restores the file's time after fn, as some tools do.
func keepTime(t *testing.T, path string, fn func()) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	fn()
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// mountConfigMap makes a volume like the kubelet's atomic writer: the files
// are links into ..data, which is a link to a folder for each version.
func mountConfigMap(t *testing.T, volume, file, version, content string) {
	t.Helper()
	folder := filepath.Join(volume, "..2026_"+version)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	overwrite(t, filepath.Join(folder, file), content)
	old, _ := os.Readlink(filepath.Join(volume, "..data"))
	if err := os.Symlink(filepath.Base(folder), filepath.Join(volume, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	mustRename(t, filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data"))
	if old != "" {
		if err := os.RemoveAll(filepath.Join(volume, old)); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.Symlink(filepath.Join("..data", file), filepath.Join(volume, file)); err != nil {
		t.Fatal(err)
	}
}

func TestConfigMapSwapReloadsARunningAppAndItsDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume := t.TempDir()
		mountConfigMap(t, volume, "service.yaml", "1", "lifecycle:\n  drain_interval: 3s\n  health_addr: 'off'\n")
		live, log := openLive(t, filepath.Join(volume, "service.yaml"))
		ln := lifecycletest.NewListener()
		app := lifecycletest.New(t, live.Get().Lifecycle)
		live.Attach(app.App).Serve("http", &http.Server{Handler: lifecycletest.Hold(nil)}, lifecycle.WithListener(ln))
		app.Start()

		mountConfigMap(t, volume, "service.yaml", "2", "lifecycle:\n  drain_interval: 30s\n  probe_timeout: 1s\n  health_addr: 'off'\n")
		pass()
		if got := app.Config().DrainInterval; got != 30*time.Second {
			t.Errorf("the App's drain is %v, want 30s", got)
		}
		if got := app.Config().ProbeTimeout; got == time.Second {
			t.Error("the probe timeout changed under a running App")
		}
		for _, want := range []string{`changes="lifecycle.drain_interval: 3s -> 30s, lifecycle.probe_timeout: its default -> 1s"`,
			`level=WARN msg="config: some changes take effect only when the process is started again" keys=lifecycle.probe_timeout`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s:\n%s", want, log)
			}
		}

		// A change that contradicts the running configuration changes nothing.
		mountConfigMap(t, volume, "service.yaml", "3", "poll: 7s\nlifecycle:\n  drain_interval: 31s\n  termination_grace: 20s\n  health_addr: 'off'\n")
		pass()
		if app.Config().DrainInterval != 30*time.Second || live.Get().Poll == 7*time.Second {
			t.Error("half of an impossible configuration was taken over")
		}
		if want := "lifecycle.pre_stop + lifecycle.drain_interval + lifecycle.shutdown_grace"; !strings.Contains(app.Log(), want) {
			t.Errorf("the App's log lacks %s:\n%s", want, app.Log())
		}

		app.Stop(nil)
		app.WantClean()
		if took := app.When("app stopping") - app.When("app draining"); took < 30*time.Second {
			t.Errorf("the drain took %v, want the 30s of the new file", took)
		}
		if reloads := app.Report().Reloads; len(reloads) != 2 {
			t.Errorf("the report has %d reloads, want 2", len(reloads))
		}
	})
}

// The shipped example with the configuration of its base, and then of its overlay for
// production. The pod was made for the base: the kubelet kills it 30 s after T0, with
// every request that the process has taken until then.
func TestReloadDoesNotOutgrowThePodsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := "lifecycle: {health_addr: 'off', drain_interval: 5s, shutdown_grace: 20s, termination_grace: 30s}\n"
		production := "poll: 7s\nlifecycle: {health_addr: 'off', drain_interval: 15s, shutdown_grace: 30s, termination_grace: 50s}\n"
		volume := t.TempDir()
		mountConfigMap(t, volume, "service.yaml", "1", base)
		live, _ := openLive(t, filepath.Join(volume, "service.yaml"))
		ln := lifecycletest.NewListener()
		app := lifecycletest.New(t, live.Get().Lifecycle)
		live.Attach(app.App).Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(20 * time.Second)
			_, _ = io.WriteString(w, "done")
		})}, lifecycle.WithListener(ln))
		app.Start()
		mountConfigMap(t, volume, "service.yaml", "2", production)
		pass()

		app.Stop(nil)
		time.Sleep(14 * time.Second)
		late := lifecycletest.Get(t, ln.Client(), "http://app/") // production's window would be open
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if p := app.Phase(); p != lifecycle.PhaseStopped {
			t.Errorf("when the kubelet kills the process, 30s after T0, it is %s", p)
		}
		if resp, _, err := late.Wait(); err == nil {
			t.Errorf("a request was taken 14s after T0 and answered with %s", resp.Status)
		}
		app.WantClean()
		for _, want := range []string{
			"lifecycle.pre_stop + lifecycle.drain_interval + lifecycle.shutdown_grace + margin is 0s + 15s + 30s + 2s = 47s",
			"with what stays while the process runs, such as the grace of its pod: lifecycle.pre_stop",
			"(lifecycle.termination_grace) gives 30s",
			"lifecycle.termination_grace is from the start of the process",
		} {
			if !strings.Contains(app.Log(), want) {
				t.Errorf("the App's log lacks %q:\n%s", want, app.Log())
			}
		}
		if live.Get().Poll == 7*time.Second {
			t.Error("half of the refused file was taken over")
		}
	})
}

// A section that is a pointer may come and go.
func TestSectionBehindAPointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type T struct{ Lifecycle *lifecycle.Config }
		path := write(t, "service.yaml", "lifecycle: {drain_interval: 30s, health_addr: 'off'}\n")
		live, err := Open[T](path, WithEnvPrefix("SERVICE"), WithEnviron(nil), WithArgs(nil), WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		app := lifecycletest.New(t, *live.Get().Lifecycle)
		live.Attach(app.App)
		app.Start()
		overwrite(t, path, "# nothing\n")
		pass()
		if got, want := app.Config().DrainInterval, (lifecycle.Config{}).WithDefaults().DrainInterval; got != want {
			t.Errorf("without the section the drain is %v, want its default, %v", got, want)
		}
		overwrite(t, path, "lifecycle: {drain_interval: 7s}\n")
		pass()
		if got := app.Config().DrainInterval; got != 7*time.Second {
			t.Errorf("with the section again the drain is %v, want 7s", got)
		}
		app.Stop(nil)
		app.WantClean()
		for _, r := range app.Report().Reloads {
			if r.Result != lifecycle.ResultOK {
				t.Errorf("a reload ended as %+v", r)
			}
		}
	})
}

func TestBadChangeIsRejectedWholeAndOnce(t *testing.T) {
	for name, content := range map[string]string{
		"invalid":   "poll: 2s\nworkers: many\n",
		"half":      "poll: 2s\nlabels: {x:",
		"empty":     "",
		"binary":    "poll: 2s\n\x00",
		"huge":      "poll: 2s\n" + strings.Repeat("# padding\n", MaxFileSize/10),
		"budget":    "poll: 2s\nlifecycle: {drain_min: 1h}\n",
		"refused":   "poll: 2s\nworkers: 13\n",
		"a folder":  "/",
		"no access": "-",
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no access" && os.Getuid() == 0 {
				t.Skip("root can read every file")
			}
			synctest.Test(t, func(t *testing.T) {
				path := write(t, "service.yaml", "poll: 1s\n")
				live, _ := openLive(t, path)
				live.Check(func(_, next service) error {
					if next.Workers == 13 {
						return errors.New("thirteen workers are refused")
					}
					return nil
				})
				live.OnChange(func(service, service) { t.Error("OnChange is called for a change that was rejected") })
				reloads, errs := watch(t, live)
				before := live.Settings()
				switch content {
				case "/":
					if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
						t.Fatal(err)
					}
				case "-":
					if err := os.Chmod(path, 0); err != nil {
						t.Fatal(err)
					}
				default:
					overwrite(t, path, content)
				}
				pass()
				if *reloads != 1 || (*errs)[0] == nil {
					t.Fatalf("%d reloads, %v, want one that fails", *reloads, *errs)
				}
				if got := live.Get(); got.Poll != time.Second || got.Workers != 4 {
					t.Errorf("it changed to %+v", got)
				}
				if after := live.Settings(); fmt.Sprint(after) != fmt.Sprint(before) {
					t.Errorf("the sources changed to %v", after)
				}
				if msg := (*errs)[0].Error(); !strings.Contains(msg, path) {
					t.Errorf("the error does not name the file: %v", msg)
				}
			})
		})
	}
}

func TestReloadOnHangup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", "poll: 1s\nlifecycle: {health_addr: 'off'}\n")
		live, _ := openLive(t, path)
		var seen []string
		live.OnChange(func(old, next service) {
			seen = append(seen, fmt.Sprintf("%v to %v, and Get is %v", old.Poll, next.Poll, live.Get().Poll))
		})
		app := lifecycletest.New(t, live.Get().Lifecycle)
		live.Attach(app.App)
		app.Start()
		overwrite(t, path, "poll: 3s\nlifecycle: {health_addr: 'off'}\n")
		app.Signal(syscall.SIGHUP)
		synctest.Wait()
		if want := []string{"1s to 3s, and Get is 3s"}; !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
		pass() // the watch knows that it was read
		if n := len(app.Report().Reloads); n != 1 {
			t.Errorf("%d reloads, want 1", n)
		}
		app.Stop(nil)
		app.WantClean()
	})
}

// A change during the start of the App is taken over when it is running.
func TestChangeDuringTheStartIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", "poll: 1s\nlifecycle: {health_addr: 'off'}\n")
		live, _ := openLive(t, path)
		app := lifecycletest.New(t, live.Get().Lifecycle)
		live.Attach(app.App).Go("slow", func(ctx context.Context) error {
			time.Sleep(10 * time.Minute)
			lifecycle.MarkStarted(ctx)
			<-ctx.Done()
			return nil
		}, lifecycle.WithStartCondition())
		app.Launch()
		overwrite(t, path, "poll: 3s\nlifecycle: {health_addr: 'off'}\n")
		pass()
		if err := live.Reload(t.Context()); !errors.Is(err, lifecycle.ErrReloadRefused) {
			t.Errorf("a reload during the start: %v, want ErrReloadRefused", err)
		}
		if live.Get().Poll != time.Second {
			t.Error("it reloads before it runs")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if live.Get().Poll != 3*time.Second {
			t.Error("the change is lost")
		}
		app.Stop(nil)
		app.WantClean()
	})
}
