package sdnotify

import (
	"slices"
	"testing"
	"time"
)

// Messages that the service manager does not read do not pile up.
func TestNotifierListIsBounded(t *testing.T) {
	n := &Notifier{wake: make(chan struct{}, 1)}
	n.Ready("running")
	for range 1000 {
		n.enqueue("WATCHDOG=1")
	}
	n.Stopping(time.Second)
	for i := range 1000 {
		n.enqueue("EXTEND_TIMEOUT_USEC=" + time.Duration(i).String())
	}
	var list []string
	for _, m := range n.pending {
		list = append(list, m.assignments[0])
	}
	if want := []string{"READY=1", "WATCHDOG=1", "STOPPING=1", "EXTEND_TIMEOUT_USEC=999ns"}; !slices.Equal(list, want) {
		t.Errorf("the messages %q wait, want %q", list, want)
	}
	for range 1000 {
		n.enqueue("RELOADING=1")
	}
	if len(n.pending) > maxPending {
		t.Errorf("%d messages wait, want %d at most", len(n.pending), maxPending)
	}
}

func TestNotifierSaysNothingOfAReloadOnceItStops(t *testing.T) {
	n := &Notifier{wake: make(chan struct{}, 1)}
	n.Stopping(time.Second)
	n.Reloading()
	n.Ready("running")
	if len(n.pending) != 1 {
		t.Errorf("the messages %v wait, want STOPPING=1 alone, because it is final", n.pending)
	}
}
