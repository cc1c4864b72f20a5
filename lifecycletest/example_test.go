package lifecycletest_test

import (
	"context"
	"fmt"
	"net/http"
	"syscall"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// In a test, t is the *testing.T, and the test runs in a synctest bubble, where the
// window of five seconds takes no real time.
func Example() {
	t := new(printing)
	defer t.end()

	ln, slow := lifecycletest.NewListener(), lifecycletest.Hold(nil)
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off})
	app.Serve("http", &http.Server{Handler: slow}, lifecycle.WithListener(ln)).
		OnShutdown("db", func(context.Context) error { app.Mark("db closed"); return nil })
	app.Start()

	answer := lifecycletest.Get(t, ln.Client(), "http://app/work")
	<-slow.Arrived()
	app.Signal(syscall.SIGTERM)
	app.Await(lifecycle.PhaseDraining)
	slow.Release()
	answer.WantStatus(http.StatusOK)
	app.WantClean()
	app.WantOrder("app draining", "mark db closed", "app stopped")
	fmt.Println(app.Report().Reason)
	// Output:
	// received signal: terminated
}

// printing is a lifecycletest.TB that prints.
type printing struct {
	failed   bool
	cleanups []func()
}

func (p *printing) Helper()      {}
func (p *printing) Name() string { return "Example" }
func (p *printing) Failed() bool { return p.failed }
func (p *printing) Errorf(format string, args ...any) {
	p.failed = true
	fmt.Printf(format+"\n", args...)
}
func (p *printing) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (p *printing) Logf(format string, args ...any)   { fmt.Printf(format+"\n", args...) }
func (p *printing) Cleanup(fn func())                 { p.cleanups = append(p.cleanups, fn) }

func (p *printing) end() {
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
}
