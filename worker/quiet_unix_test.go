//go:build unix

package worker_test

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Waiting for a process that does not end takes no processor time. (The test
// measures processor time, which does not depend on the load of the machine.)
func TestWaitForAStubbornProcessUsesNoProcessorTime(t *testing.T) {
	out := newLines()
	w := worker.NewProcess("p", helperCommand("ignore", out), worker.WithGrace(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	cancel()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	time.Sleep(500 * time.Millisecond)
	if took := used() - before; took > 250*time.Millisecond {
		t.Errorf("half a second of waiting took %v of processor time", took)
	}
	_ = w.Signal(os.Kill.(syscall.Signal))
	<-w.Done()
}
