package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// The original table, as the model has it, row by row.
var original = []fsm.Edge[worker.Status]{
	{From: "Created", To: "Starting"}, {From: "Created", To: "Pending"},
	{From: "Pending", To: "Starting"}, {From: "Pending", To: "Stopped"},
	{From: "Starting", To: "Running"}, {From: "Starting", To: "Failed"},
	{From: "Running", To: "Suspended"}, {From: "Running", To: "Stopping"}, {From: "Running", To: "Finished"}, {From: "Running", To: "Failed"},
	{From: "Suspended", To: "Running"}, {From: "Suspended", To: "Stopping"},
	{From: "Stopping", To: "Stopped"}, {From: "Stopping", To: "Failed"}, {From: "Stopping", To: "Killed"},
}

// The edges that the original table does not have.
var added = []fsm.Edge[worker.Status]{
	{From: "Created", To: "Stopped"},
	{From: "Starting", To: "Stopped"},
	{From: "Starting", To: "Stopping"},
	{From: "Running", To: "Stopped"},
	{From: "Suspended", To: "Failed"},
}

func TestTransitionsAreTheOriginalTableAndFiveAddedEdges(t *testing.T) {
	table := worker.Transitions()
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	if n := len(table.Phases()); n != 10 {
		t.Errorf("%d statuses, want 10", n)
	}
	want := append(slices.Clone(original), added...)
	for _, e := range table.Edges() {
		if !slices.Contains(want, e) {
			t.Errorf("edge %v is in neither list", e)
		}
	}
	for _, e := range want {
		if !table.IsValidTransition(e.From, e.To) {
			t.Errorf("edge %v is missing", e)
		}
	}
	table[worker.StatusFinished] = []worker.Status{worker.StatusRunning}
	if !worker.StatusFinished.Terminal() {
		t.Error("changing the copy changed the table that is enforced")
	}
}

func TestSetStatusRefusesWhatIsNotInTheTable(t *testing.T) {
	var b worker.BaseWorker
	b.Init("test", "w")
	for _, s := range []worker.Status{"Banana", worker.StatusRunning, worker.StatusKilled, worker.StatusCreated} {
		if err := b.SetStatus(s); !errors.Is(err, fsm.ErrInvalidTransition) {
			t.Errorf("Created -> %s: %v, want ErrInvalidTransition", s, err)
		}
		if got := b.Status(); got != worker.StatusCreated {
			t.Fatalf("a refused change moved it to %s", got)
		}
	}
	for _, s := range []worker.Status{worker.StatusStarting, worker.StatusRunning, worker.StatusFinished} {
		if err := b.SetStatus(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetStatus(worker.StatusRunning); !errors.Is(err, fsm.ErrInvalidTransition) {
		t.Errorf("Finished -> Running: %v", err)
	}
}

func TestFinalStatusIsAPureFunctionOfThreeFacts(t *testing.T) {
	interrupted := fmt.Errorf("%w: signal: terminated", worker.ErrInterrupted)
	tests := []struct {
		killed, stop bool
		err          error
		want         worker.Status
	}{
		{false, false, nil, worker.StatusFinished},
		{false, true, nil, worker.StatusStopped},
		{false, false, errBoom, worker.StatusFailed},
		{false, true, errBoom, worker.StatusFailed},
		{false, false, interrupted, worker.StatusStopped},
		{false, true, interrupted, worker.StatusStopped},
		{true, true, nil, worker.StatusKilled},
		{true, true, errBoom, worker.StatusKilled},
		{true, true, interrupted, worker.StatusKilled},
		{true, false, nil, worker.StatusKilled},
		{false, true, context.DeadlineExceeded, worker.StatusFailed},
		{false, false, io.EOF, worker.StatusFailed},
		{false, false, context.Canceled, worker.StatusFailed},
	}
	for _, test := range tests {
		if got := worker.FinalStatus(test.killed, test.stop, test.err); got != test.want {
			t.Errorf("FinalStatus(%v, %v, %v) = %s, want %s", test.killed, test.stop, test.err, got, test.want)
		}
	}
}

func TestHealthMovesUpdatedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b worker.BaseWorker
		b.Init("test", "w")
		time.Sleep(time.Second)
		b.SetHealth(worker.HealthUnhealthy)
		at := b.UpdatedAt()
		time.Sleep(time.Second)
		b.SetHealth(worker.HealthUnhealthy) // no change
		if got := b.UpdatedAt(); !got.Equal(at) || !got.Equal(time.Now().Add(-time.Second)) {
			t.Errorf("UpdatedAt is %v", got)
		}
		_ = b.SetStatus(worker.StatusStarting)
		if got := b.UpdatedAt(); !got.Equal(time.Now()) {
			t.Errorf("after a change of status UpdatedAt is %v", got)
		}
	})
}

func TestEveryEndIsATerminalStatus(t *testing.T) {
	set := func(to ...worker.Status) func(*worker.BaseWorker) {
		return func(b *worker.BaseWorker) {
			for _, s := range to {
				if err := b.SetStatus(s); err != nil {
					panic(err)
				}
			}
		}
	}
	finish := func(err error) func(*worker.BaseWorker) { return func(b *worker.BaseWorker) { b.Finish(err) } }
	kill := func(b *worker.BaseWorker) { b.Kill(errBoom) }
	for name, test := range map[string]struct {
		do   []func(*worker.BaseWorker)
		want worker.Status
	}{
		"stopping was set":           {[]func(*worker.BaseWorker){set("Starting", "Running", "Stopping"), finish(nil)}, "Stopped"},
		"finished before it began":   {[]func(*worker.BaseWorker){finish(nil)}, "Finished"},
		"failed before it began":     {[]func(*worker.BaseWorker){finish(errBoom)}, "Failed"},
		"killed before it began":     {[]func(*worker.BaseWorker){kill}, "Killed"},
		"killed while it was paused": {[]func(*worker.BaseWorker){set("Starting", "Running", "Suspended"), kill}, "Killed"},
		"finished while pending":     {[]func(*worker.BaseWorker){set("Pending"), finish(nil)}, "Finished"},
		"the end was set":            {[]func(*worker.BaseWorker){set("Starting", "Running", "Finished"), finish(errBoom)}, "Finished"},
		"finished twice":             {[]func(*worker.BaseWorker){set("Starting", "Running"), finish(nil), finish(errBoom)}, "Finished"},
		"suspended, then done":       {[]func(*worker.BaseWorker){set("Starting", "Running", "Suspended"), finish(nil)}, "Finished"},
	} {
		t.Run(name, func(t *testing.T) {
			var b worker.BaseWorker
			b.Init("test", "w")
			for _, do := range test.do {
				do(&b)
			}
			if b.Status() != test.want || b.DeriveFinalStatus() != test.want {
				t.Errorf("it is %s, derived %s, want %s", b.Status(), b.DeriveFinalStatus(), test.want)
			}
			select {
			case <-b.Done():
			default:
				t.Error("Done is open")
			}
		})
	}
}

func TestFailureJoinedWithTheCancelIsAFailure(t *testing.T) {
	for name, err := range map[string]error{
		"joined": errors.Join(context.Canceled, errBoom),
		"nested": fmt.Errorf("a: %w", errors.Join(worker.ErrStopRequested, fmt.Errorf("b: %w", errBoom))),
	} {
		w := worker.NewFunc("w", func(ctx context.Context) error { <-ctx.Done(); return err })
		_ = w.Start(t.Context())
		_ = w.Stop(t.Context())
		if w.Status() != worker.StatusFailed || !errors.Is(w.Err(), errBoom) {
			t.Errorf("%s: it is %s: %v", name, w.Status(), w.Err())
		}
	}
}

// When a function returns the expired deadline of the context given to Start,
// that is a failure.
func TestDeadlineOfItsOwnContextIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f := worker.NewFunc("f", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if err := f.Start(ctx); err != nil {
			t.Fatal(err)
		}
		<-f.Done()
		if f.Status() != worker.StatusFailed || !errors.Is(f.Err(), context.DeadlineExceeded) {
			t.Errorf("it is %s with %v", f.Status(), f.Err())
		}
	})
}
