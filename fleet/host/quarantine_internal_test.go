package host

import (
	"errors"
	"testing"
	"time"
)

// TestWaitAfterAStaleRecord checks what ends the wait of code that failed: an operator who starts the
// worker, and not the record that the slot itself wrote before the failure.
func TestWaitAfterAStaleRecord(t *testing.T) {
	// It failed with the Failed record 10, from which it was loaded before it was set Running.
	failed := &trouble{err: errors.New("it failed"), until: time.Now().Add(time.Hour), revision: 10}
	failed.code = (&Record{ID: "w"}).codeVersion()
	s := &slot{host: &Host{cfg: Config{HostID: "a"}}, workers: map[string]*workerStatus{"w": {trouble: failed}}}
	look := func(state State, revision uint64, by string) error {
		_, err := s.troubleOf(&Record{ID: "w", State: state, Changed: Change{By: by}, revision: revision})
		return err
	}
	for _, x := range []struct {
		state    State
		revision uint64
		by       string
		waits    bool
	}{{StateFailed, 10, "a", true}, {StateRunning, 11, "a", true}, {StateFailed, 12, "a", true}, {StateRunning, 13, "ann", false}} {
		if err := look(x.state, x.revision, x.by); (err != nil) != x.waits {
			t.Errorf("%s, revision %d: %v", x.state, x.revision, err)
		}
	}
}

// TestWaitBeginsWithTheFirstLook checks that the wait of code that failed in a runner is not over before the
// slot, which waits for the end of the runner, has looked at it.
func TestWaitBeginsWithTheFirstLook(t *testing.T) {
	rec := &Record{ID: "w", State: StateRunning, revision: 1}
	s := &slot{workers: make(map[string]*workerStatus), host: &Host{tallies: make(map[string]map[codeVersion]*Counts)}}
	s.codeFailed(rec, errors.New("it failed"))
	if until := s.workers["w"].trouble.until; !until.IsZero() {
		t.Errorf("before a look it waits until %v", until)
	}
	if failed, err := s.troubleOf(rec); !failed || err == nil {
		t.Errorf("at the first look: %v, %v", failed, err)
	}
}
