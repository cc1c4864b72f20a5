package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// logBuffer keeps what is logged.
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

// openLive opens a configuration of that content, with a log.
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

// However a file is changed, the change is taken over once.
func TestWatchSeesEveryWayToChangeAFile(t *testing.T) {
	const before, after = "poll: 1s\n", "poll: 2s\n" // of one length
	for name, swap := range map[string]func(t *testing.T, path string){
		"written over":  func(t *testing.T, path string) { overwrite(t, path, after) },
		"the same time": func(t *testing.T, path string) { keepTime(t, path, func() { overwrite(t, path, after) }) },
		"renamed over":  func(t *testing.T, path string) { overwrite(t, path+"~", after); mustRename(t, path+"~", path) },
		"removed, made": func(t *testing.T, path string) { _ = os.Remove(path); pass(); overwrite(t, path, after) },
		"truncated, then": func(t *testing.T, path string) {
			overwrite(t, path, "")
			time.Sleep(DefaultPoll + settled/2)
			overwrite(t, path, after)
		},
		"byte by byte": func(t *testing.T, path string) {
			slow := "# " + strings.Repeat("a line of words that takes longer than many looks ", 2) + "\n" + after
			for i := range slow {
				overwrite(t, path, slow[:i+1])
				time.Sleep(settled - time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := write(t, "service.yaml", before)
				live, log := openLive(t, path)
				reloads, errs := watch(t, live)
				pass()
				if *reloads != 0 {
					t.Errorf("%d reloads of a file that nobody has changed", *reloads)
				}
				swap(t, path)
				pass()
				if got := live.Get().Poll; got != 2*time.Second {
					t.Errorf("poll is %v, want 2s", got)
				}
				if *reloads != 1 || (*errs)[0] != nil {
					t.Errorf("%d reloads, %v, want one that is fine", *reloads, *errs)
				}
				if n := strings.Count(log.String(), `changes="poll: 1s -> 2s"`); n != 1 {
					t.Errorf("the change is logged %d times, want once:\n%s", n, log)
				}
			})
		})
	}
}

// firstHalf is the beginning of entire, and a configuration too.
const (
	entire    = "poll: 2s\nworkers: 9\nlifecycle:\n  drain_interval: 30s\n  health_addr: 'off'\n"
	firstHalf = "poll: 2s\n"
)

// A writer who pauses in the middle has nobody run by the defaults of the rest.
func TestHalfAFileIsNotTakenForAWholeOne(t *testing.T) {
	for name, pause := range map[string]time.Duration{"a moment": settled / 2, "longer than a file has to be the same": 4 * settled, "nearly for ever": settledShorter - DefaultPoll - settled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := write(t, "service.yaml", entire)
				live, log := openLive(t, path)
				reloads, _ := watch(t, live)
				live.OnChange(func(_, next service) {
					if next.Workers != 9 {
						t.Errorf("it was taken over with %d workers", next.Workers)
					}
				})
				pass()
				overwrite(t, path, firstHalf)
				time.Sleep(DefaultPoll + pause) // it was seen by now
				overwrite(t, path, entire+"debug: true\n")
				pass()
				if got := live.Get(); *reloads != 1 || !got.Debug || got.Lifecycle.DrainInterval != 30*time.Second {
					t.Errorf("after %d reloads it is %+v", *reloads, got)
				}
				if strings.Contains(log.String(), "WARN") {
					t.Errorf("there is nothing to warn of:\n%s", log)
				}
			})
		})
	}
}

// What is shorter for good is taken over, and the log says what that costs.
func TestKeysThatAreGoneAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", entire+"debug: true\nratio: 0\n")
		live, log := openLive(t, path, "SERVICE_WORKERS=9")
		watch(t, live)
		pass()
		overwrite(t, path, firstHalf)
		time.Sleep(DefaultPoll + settledShorter - settled)
		synctest.Wait()
		if !live.Get().Debug {
			t.Error("it was read before it had been shorter for long enough")
		}
		pass()
		if got := live.Get(); got.Debug || got.Lifecycle.DrainInterval != 0 || got.Workers != 9 {
			t.Errorf("it is %+v", got)
		}
		// Not workers, which the environment gives, and not ratio, which has not changed.
		for _, want := range []string{`level=WARN msg="config: these keys are not given any more and have their defaults"`,
			`keys="debug, lifecycle.health_addr, lifecycle.drain_interval"`, "lifecycle.drain_interval: 30s -> its default"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s:\n%s", want, log)
			}
		}
		overwrite(t, path, entire)
		pass()
		if n := strings.Count(log.String(), "not given any more"); n != 1 || live.Get().Lifecycle.DrainInterval != 30*time.Second {
			t.Errorf("told %d times, want once:\n%s", n, log)
		}
	})
}

func mustRename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// keepTime gives the file the time back that it had, as some tools do.
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

// mountConfigMap makes a volume as the kubelet's atomic writer does: the files
// are links into ..data, which is a link to a folder of its own for each version.
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
			`level=WARN msg="config: some of this holds only when the process is started again" keys=lifecycle.probe_timeout`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s:\n%s", want, log)
			}
		}

		// One that makes no sense, together with what is running, changes nothing.
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
		if got, want := app.Config().DrainInterval, lifecycle.DefaultConfig().DrainInterval; got != want {
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
						return errors.New("thirteen is no number of workers")
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

func TestFileThatIsGoneChangesNothingAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", "poll: 1s\n")
		live, log := openLive(t, path)
		reloads, _ := watch(t, live)
		_ = os.Remove(path)
		pass()
		overwrite(t, path, "poll: 1s\n") // as it was
		pass()
		if *reloads != 0 || live.Get().Poll != time.Second {
			t.Errorf("%d reloads, poll %v", *reloads, live.Get().Poll)
		}
		if n := strings.Count(log.String(), "the file is gone"); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, log)
		}
	})
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

// A change that comes while the App starts is taken over when it is running.
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

func TestSecretsAreNeverShown(t *testing.T) {
	path := write(t, "service.yaml", "token: hunter2-one\ndsn: hunter2-two\nlifecycle: {admin_token: hunter2-three-16-chars}\n")
	live, log := openLive(t, path, "SERVICE_TOKEN=hunter2-four")
	overwrite(t, path, "token: hunter2-five\ndsn: hunter2-six\npoll: 9s\nlifecycle: {admin_token: hunter2-seven-16-chars}\n")
	if err := live.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := log.String() + fmt.Sprint(live.Settings()) + fmt.Sprintf("%v %+v %#v", live.Get().Token, live.Get().Lifecycle, live.Get().Token)
	for _, content := range []string{
		"token: [hunter2]\n", "token: {hunter2: 1}\n", "dsn: 2222222\nlifecycle: {admin_token: hunter2}\n", "tokn: hunter2\n",
		"hunter2\n", "token: hunter2\n  x: 1\n", "- hunter2\n", "token: 'hunter2\n", "hunter2: &a [*a]\n", "token: !!int hunter2\n", "token: \"hunter2\\q\"\n",
	} {
		overwrite(t, path, content)
		err := live.Reload(t.Context())
		if err == nil {
			t.Errorf("%q is taken", content)
			continue
		}
		msg := err.Error()
		if content != "hunter2: &a [*a]\n" && content != "token: {hunter2: 1}\n" { // there it is a key
			seen += "\n" + msg
		}
	}
	for _, content := range []string{`{"token": hunter2}`, `{"token": "hunter2`, `["hunter2"]`, `{"lifecycle": {"admin_token": ["hunter2"]}}`} {
		if _, err := loadWith(write(t, "a.json", content), nil, nil); err == nil {
			t.Errorf("%q is taken", content)
		} else {
			seen += "\n" + err.Error()
		}
	}
	for _, content := range []string{`token = hunter2`, `token = "hunter2`, "[lifecycle]\nadmin_token = [\"hunter2\"]", `token = "hunter2" x`} {
		if _, err := loadWith(write(t, "a.toml", content), nil, nil); err == nil {
			t.Errorf("%q is taken", content)
		} else {
			seen += "\n" + err.Error()
		}
	}
	if strings.Contains(seen, "hunter2") || strings.Contains(seen, "2222222") {
		t.Errorf("a secret is shown:\n%s", seen)
	}
	if !strings.Contains(log.String(), "dsn: [secret] -> [secret], lifecycle.admin_token: [secret] -> [secret]") {
		t.Errorf("the change itself is not logged:\n%s", log)
	}
}

// A secret is one in whatever it stands, and so is what stands in its place.
func TestSecretsAreHiddenInEveryShape(t *testing.T) {
	type nested struct {
		Password string
		Retries  int
	}
	type T struct {
		Tokens  []lifecycle.Secret
		ByName  map[string]lifecycle.Secret
		Lists   map[string][]lifecycle.Secret
		Pointer *lifecycle.Secret
		Addr    netip.Addr `secret:"true"`
		DB      nested     `koanf:"db" secret:"true"`
		DBs     []nested   `koanf:"dbs" secret:"true"`
		Logins  []struct{ Key lifecycle.Secret }
		Login   struct{ Key lifecycle.Secret }
	}
	quietly := func(environ []string) []Option {
		return []Option{WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(nil)}
	}
	var seen strings.Builder
	for _, content := range []string{
		"tokens: hunter2", "tokens: [12345678]", "by_name: hunter2", "by_name: {a: 12345678}", "lists: {a: hunter2}", "lists: {a: [12345678]}",
		"pointer: 12345678", "addr: hunter2", "db: hunter2", "db: {password: 12345678}", "db: {retries: hunter2}",
		"dbs: hunter2", "dbs: [hunter2]", "dbs: [{retries: hunter2}]", "logins: hunter2", "logins: [hunter2]", "login: hunter2",
	} {
		_, err := Load[T](write(t, "service.yaml", content), quietly(nil)...)
		if err == nil {
			t.Errorf("%q is taken", content)
		}
		fmt.Fprintln(&seen, err)
	}
	for _, variable := range []string{"SERVICE_BY_NAME=hunter2", "SERVICE_ADDR=hunter2", "SERVICE_DB_RETRIES=hunter2"} {
		_, err := Load[T]("", quietly([]string{variable})...)
		if err == nil {
			t.Errorf("%q is taken", variable)
		}
		fmt.Fprintln(&seen, err)
	}
	if _, err := Load[lifecycle.Config](write(t, "service.yaml", "lifecycle: hunter2"), append(quietly(nil), Section("lifecycle"))...); err == nil {
		t.Error("a section that is none is taken")
	} else {
		fmt.Fprintln(&seen, err)
	}

	log := &logBuffer{}
	path := write(t, "service.yaml", "tokens: [hunter2]\ndb: {password: hunter2}\n")
	live, err := Open[T](path, append(quietly(nil), WithLogger(slog.New(slog.NewTextHandler(log, nil))))...)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, "tokens: [hunter2, hunter2]\npointer: hunter2\ndb: {password: hunter2hunter2, retries: 12345678}\ndbs: [{password: hunter2}]\nlogins: [{key: hunter2}]\n")
	if err := live.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&seen, log, live.Settings())
	if s := seen.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "12345678") {
		t.Errorf("a secret is shown:\n%s", s)
	}
	if !strings.Contains(log.String(), "db.password: [secret] -> [secret]") {
		t.Errorf("the change itself is not logged:\n%s", log)
	}
}

func TestSettingsSayWhoWon(t *testing.T) {
	path := write(t, "service.yaml", "\npoll: 1s\nworkers: 5\n")
	live, err := Open[service](path, WithEnvPrefix("SERVICE"), WithEnviron([]string{"SERVICE_POLL=2s"}), WithArgs([]string{"-poll=3s"}), WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{Key: "poll", Value: "3s", Source: "flag -poll", Lost: []string{path + ":2: 1s", "environment SERVICE_POLL: 2s"}},
		{Key: "workers", Value: "5", Source: path + ":3"},
	}
	if got := live.Settings(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}
