package lifecycletest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ lifecycletest.TB = (*testing.T)(nil)

// fake is a TB that records failures, so that a test can check them.
type fake struct {
	printing
	said []string
}

func (f *fake) Errorf(format string, args ...any) {
	f.failed = true
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func (f *fake) Logf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

// says runs fn as a test and returns its failures.
func says(fn func(t lifecycletest.TB)) string {
	f := new(fake)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer f.end()
		fn(f)
	}()
	<-done
	return strings.Join(f.said, "\n")
}

func minded(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestFailuresSayWhatHappened(t *testing.T) {
	boom := errors.New("boom")
	release := make(chan struct{})
	for name, c := range map[string]struct {
		fn   func(t lifecycletest.TB)
		want []string
	}{
		"nothing": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", minded)
			app.Start()
			app.WantReady(true)
			app.Signal(syscall.SIGTERM)
			app.WantClean()
			app.WantOrder("app starting", "worker work Running", "app running", "app draining", "worker work Stopped", "app stopped")
		}, nil},
		"stopped by the end of the test": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", minded)
			app.Start()
		}, nil},
		"a phase that never comes": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", func(context.Context) error { return boom })
			app.Go("waits", minded, lifecycle.WithStartCondition())
			app.Start()
		}, []string{"never came to phase running", "ended in phase failed", "unit work: boom", "worker work Failed (boom)", "the App's log", "unit failed"}},
		"a phase that takes too long": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", minded, lifecycle.WithStartCondition())
			app.Start()
		}, []string{"did not come to phase running in 1m25s", "phase starting"}},
		"no request to stop": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", minded)
			app.Start()
			_ = app.Wait()
		}, []string{"did not end in 1m25s", "asked to stop?"}},
		"no such phase": {func(t lifecycletest.TB) {
			lifecycletest.New(t, lifecycle.Config{}).Await("ready")
		}, []string{`no phase "ready"`}},
		"a bad config": {func(t lifecycletest.TB) {
			lifecycletest.New(t, lifecycle.Config{DrainWait: "perhaps"})
		}, []string{"cannot be made", "DrainWait", "perhaps"}},
		"not clean": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.OnShutdown("db", func(context.Context) error { return boom })
			app.Start()
			app.Signal(syscall.SIGTERM)
			app.WantClean()
		}, []string{"Run returned", "shutdown hook db: boom"}},
		"wrong order": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.OnShutdown("db", func(context.Context) error { app.Mark("db closed"); return nil })
			app.Start()
			app.Signal(syscall.SIGTERM)
			app.WantClean()
			app.WantOrder("mark db closed", "app draining")
		}, []string{`"app draining" happened before "mark db closed"`, "app stopping", "received signal: terminated"}},
		"a hook out of order": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.OnShutdown("db", func(context.Context) error { return nil })
			app.Start()
			app.Signal(syscall.SIGTERM)
			app.WantClean()
			app.WantOrder("app draining", "hook db running", "hook db ok", "app stopped")
			app.WantOrder("hook db ok", "app draining")
		}, []string{`"app draining" happened before "hook db ok"`}},
		"a misspelt event": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", minded)
			app.Start()
			app.WantOrder("app starting", "worker wrok Running")
			app.WantOrder("app starting", "worker work Finished")
			app.When("app runnning")
		}, []string{`"worker work Finished" did not happen; did you mean "worker work Running"?`, `"worker wrok Running" did not happen; did you mean "worker work Running"?`, `"app runnning" did not happen; did you mean "app running"?`}},
		"the phase that it has come to": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Start()
			app.WantOrder("app starting", "app running")
		}, nil},
		"did not happen": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Start()
			app.WantOrder("app running", "mark flushed")
			app.When("mark flushed")
		}, []string{`"mark flushed" did not happen`, "app starting"}},
		"ready, and should not be": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Start()
			app.WantReady(false)
		}, []string{"/readyz is 200"}},
		"a signal too late": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Start()
			app.Stop(nil)
			app.WantClean()
			app.Signal(os.Interrupt)
		}, []string{"signal interrupt comes too late", "phase stopped"}},
		"a goroutine is left": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Go("work", func(ctx context.Context) error {
				go func() { <-release }()
				return minded(ctx)
			})
			app.Start()
			app.Stop(nil)
			app.WantClean()
		}, []string{"goroutines that the App began are left", "TestFailuresSayWhatHappened", "lifecycletest_test.go"}},
		"a check that hangs": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { <-release; return nil }))
			app.Start()
			app.Stop(nil)
			app.WantClean()
		}, []string{"left behind", `readiness check "db" has not returned`}},
		"nothing to test": {func(t lifecycletest.TB) {
			_ = lifecycletest.Wrap(t, func(...lifecycle.Option) (*lifecycle.App, error) { return nil, nil })
		}, []string{"neither an App nor an error"}},
		"a request lost": {func(t lifecycletest.TB) {
			ln := lifecycletest.NewListener()
			_ = ln.Close()
			lifecycletest.Get(t, ln.Client(), "http://app/").WantStatus(http.StatusOK)
		}, []string{"http://app/: lost", "closed"}},
		"a wrong status": {func(t lifecycletest.TB) {
			ln := lifecycletest.NewListener()
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(ln))
			app.Start()
			lifecycletest.Get(t, ln.Client(), "http://app/x").WantStatus(http.StatusOK)
		}, []string{"http://app/x: status 404", "want 200"}},
		"started twice": {func(t lifecycletest.TB) {
			app := lifecycletest.New(t, lifecycle.Config{})
			app.Start()
			app.Start()
		}, []string{"started before"}},
		"not started": {func(t lifecycletest.TB) {
			_ = lifecycletest.New(t, lifecycle.Config{}).Wait()
		}, []string{"was not started"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var let chan struct{}
				if name == "a goroutine is left" || name == "a check that hangs" { // channels belong to their bubble
					let = make(chan struct{})
					release = let
				}
				got := says(c.fn)
				if len(c.want) == 0 && got != "" {
					t.Errorf("complains:\n%s", got)
				}
				for _, want := range c.want {
					if !strings.Contains(got, want) {
						t.Errorf("does not say %q:\n%s", want, got)
					}
				}
				if let != nil {
					close(let)
				}
			})
		})
	}
}

// The whole window is exact to the microsecond, and takes no real time.
func TestDrainTimesAreExactInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln, slow := lifecycletest.NewListener(), lifecycletest.Hold(nil)
		app := lifecycletest.New(t, lifecycle.Config{DrainInterval: 7 * time.Second})
		app.Serve("http", &http.Server{Handler: slow}, lifecycle.WithListener(ln))
		app.Start()
		answer := lifecycletest.Get(t, ln.Client(), "http://app/")
		<-slow.Arrived()
		time.Sleep(time.Second)
		app.Signal(syscall.SIGTERM)
		time.Sleep(9 * time.Second) // past the window, in the time that open connections have
		slow.Release()
		answer.WantStatus(http.StatusOK)
		app.WantClean()
		if at := app.When("app draining"); at != time.Second {
			t.Errorf("draining at %v, want 1s", at)
		}
		if at := app.When("app stopping"); at < 9*time.Second {
			t.Errorf("stopping at %v, before the request had its answer", at)
		}
	})
}

// Test the App of a program's own constructor, in real time.
func TestWrapTakesTheProgramsOwnApp(t *testing.T) {
	build := func(opts ...lifecycle.Option) (*lifecycle.App, error) {
		app, err := lifecycle.New(lifecycle.Config{HealthAddr: "127.0.0.1:0", TerminationLog: "off", DrainInterval: lifecycle.Off}, opts...)
		if err == nil {
			app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()})
		}
		return app, err
	}
	app := lifecycletest.Wrap(t, build)
	app.Start()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	lifecycletest.Get(t, client, "http://"+app.Addr("http").String()).WantStatus(http.StatusNotFound)
	lifecycletest.Get(t, client, "http://"+app.HealthAddr().String()+"/statusz").WantStatus(http.StatusOK)
	app.Signal(syscall.SIGTERM)
	app.WantClean()
	if !strings.Contains(app.Log(), "received signal: terminated") {
		t.Errorf("the log has nothing of the signal:\n%s", app.Log())
	}
}

// The page in docs/ shows the code that runs here.
func TestPageShowsTheTestThatIsRun(t *testing.T) {
	page, err := os.ReadFile("../docs/guides/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("drain_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Replace(string(code), "package lifecycletest_test", "package yours", 1)
	if !strings.Contains(string(page), "```go\n"+shown+"```") {
		t.Error("docs/guides/testing.md does not show drain_test.go as it is")
	}
}
