package main

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/worker"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each feed is restarted three times under load, and then the service drains: no request is
// lost, and no feed of before goes on. A server is not restarted: nothing supervises it.
func TestRestartsAndADrain(t *testing.T) {
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: time.Second})
	register(app.App, "127.0.0.1:0")
	app.Start()
	load := app.Load("http", "GET /")
	for range 3 {
		for _, feed := range []string{"feeds/prices", "feeds/rates"} {
			if err := app.RestartUnit(t.Context(), feed); err != nil {
				t.Errorf("restart %s: %v", feed, err)
			}
		}
	}
	if err := app.RestartUnit(t.Context(), "http"); !errors.Is(err, worker.ErrNotRestartable) {
		t.Errorf("the restart of a server: %v, want ErrNotRestartable", err)
	}
	app.Signal(syscall.SIGTERM)
	app.WantClean()
	load.WantNoneLost()
	begun := make(map[string]int)
	for _, e := range app.Recorded() {
		if e.To == "Running" {
			begun[e.Name]++
		}
	}
	if begun["prices"] != 4 || begun["rates"] != 4 {
		t.Errorf("these units have begun: %v, want each feed 4 times", begun)
	}
}
