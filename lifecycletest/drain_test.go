package lifecycletest_test

import (
	"context"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln, slow := lifecycletest.NewListener(), lifecycletest.Hold(nil) // your handler in place of nil
		app := lifecycletest.New(t, lifecycle.Config{})
		app.Serve("http", &http.Server{Handler: slow}, lifecycle.WithListener(ln)).
			OnShutdown("db", func(context.Context) error { app.Mark("db closed"); return nil })
		app.Start()

		answer := lifecycletest.Get(t, ln.Client(), "http://app/work")
		<-slow.Arrived() // the request is in flight
		app.Signal(syscall.SIGTERM)
		app.Await(lifecycle.PhaseDraining)
		app.WantReady(false)
		slow.Release()

		answer.WantStatus(http.StatusOK)
		app.WantClean()
		app.WantOrder("app draining", "worker http Stopped", "mark db closed", "app stopped")
	})
}
