package lifecycle

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/models"
)

// Stops in any order of what may happen go along the model of the stop.
func TestStopsConformToTheModel(t *testing.T) {
	var records [][]models.Event
	for i := range uint64(300) {
		synctest.Test(t, func(t *testing.T) { records = append(records, recordedStop(t, rand.New(rand.NewPCG(i, 0)))) })
	}
	models.Conform(t, "stop", records)
}

// recordedStop runs an App of the size of the model: one drainer, one unit and two hooks, each of which may
// take any time, or never return.
func recordedStop(t *testing.T, random *rand.Rand) (record []models.Event) {
	var r recorder
	signals := make(chan os.Signal, 3)
	a := r.of(testApp(t, Config{DrainInterval: 2 * time.Second, ShutdownGrace: 4 * time.Second, SignalDebounce: Off}, signals))
	events := a.Events().Subscribe(1000)
	release := make(chan struct{})
	takes := func() {
		select {
		case <-time.After(time.Duration(random.IntN(5000)) * time.Millisecond):
		case <-release:
		}
	}
	foreign := func(context.Context) error { takes(); return nil }
	a.OnDrain("drainer", DrainFunc(foreign))
	a.OnShutdown("0", foreign)
	a.OnShutdown("1", foreign)
	fails := time.Duration(random.IntN(4000)) * time.Millisecond
	a.Go("unit", func(ctx context.Context) error {
		select {
		case <-time.After(fails):
			return errors.New("broken")
		case <-ctx.Done():
			takes()
			return nil
		}
	})
	if random.IntN(10) == 0 {
		a.OnDrain("drainer", DrainFunc(foreign)) // Run refuses the second of a name
	}
	for range random.IntN(4) {
		time.AfterFunc(time.Duration(random.IntN(5000))*time.Millisecond, func() { signals <- syscall.SIGTERM })
	}
	_ = a.Run(t.Context())
	close(release)
	synctest.Wait()
	events.Close()
	phases := map[string]string{
		string(PhaseStarting): "PhaseStarting", string(PhaseRunning): "PhaseRunning", string(PhaseDraining): "PhaseDraining",
		string(PhaseStopping): "PhaseStopping", string(PhaseStopped): "PhaseStopped", string(PhaseFailed): "PhaseFailed",
		string(PhaseKilled): "PhaseKilled",
	}
	results := map[string]string{
		string(ResultRunning): "ResultRunning", string(ResultOK): "ResultOK",
		string(ResultAbandoned): "ResultAbandoned", string(ResultSkipped): "ResultSkipped",
	}
	for e := range events.All(t.Context()) {
		switch {
		case e.Kind == KindApp:
			record = append(record, models.Event{State: phases[e.To]})
			switch Phase(e.To) {
			case PhaseStopped, PhaseFailed, PhaseKilled:
				return record // what comes behind the exit, no process does
			}
		case e.Kind == KindDrainer:
			record = append(record, models.Event{Life: 1, State: results[e.To]})
		case e.Name == "1" && e.Kind == KindHook:
			record = append(record, models.Event{Life: 2, State: results[e.To]})
		case e.Name == "0" && e.Kind == KindHook:
			record = append(record, models.Event{Life: 3, State: results[e.To]})
		}
	}
	t.Error("the App has no end")
	return record
}
