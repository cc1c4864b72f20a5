package child

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow takes 10 ms for a write.
type slow struct {
	wrote []string
	began []time.Time
	fail  error
}

func (s *slow) Write(b []byte) (int, error) {
	s.began = append(s.began, time.Now())
	time.Sleep(10 * time.Millisecond)
	if s.fail != nil {
		return 0, s.fail
	}
	s.wrote = append(s.wrote, string(b))
	return len(b), nil
}

// rig writes parts of a stream, as Send does.
type rig struct {
	mu   sync.Mutex
	conn slow
	*gatherer
}

func newRig() *rig {
	r := &rig{}
	r.gatherer = newGatherer(&r.conn, &r.mu)
	return r
}

func (r *rig) send(text string, first bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room(len(text))
	r.part(first, len(text))
	_, err := r.Write([]byte(text))
	return err
}

func (r *rig) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush()
}

func TestMessagesThatWaitAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		began := time.Now()
		_ = r.send("1", true)
		if took := time.Since(began); took != 10*time.Millisecond || !slices.Equal(r.conn.wrote, []string{"1"}) {
			t.Errorf("the first message took %v, and %q was written when Send returned", took, r.conn.wrote)
		}
		for _, text := range []string{"2", "3", "4"} {
			_ = r.send(text, false)
			synctest.Wait() // the goroutine has begun to write
		}
		if took := time.Since(began); took != 10*time.Millisecond {
			t.Errorf("messages that wait hold up the handler: %v", took)
		}
		r.mu.Lock()
		_, _ = r.Write([]byte("complete")) // other messages keep their place
		r.mu.Unlock()
		r.rest()
		if want := []string{"1", "2", "34complete"}; !slices.Equal(r.conn.wrote, want) {
			t.Errorf("the writes are %q, want %q", r.conn.wrote, want)
		}
		if third := r.conn.began[2].Sub(began); third != 20*time.Millisecond {
			t.Errorf("what waited was written after %v: the write before it ended after 20ms", third)
		}
		time.Sleep(11 * time.Millisecond) // longer than the last write took
		_ = r.send("5", false)
		if want := []string{"1", "2", "34complete", "5"}; !slices.Equal(r.conn.wrote, want) {
			t.Errorf("a message that need not wait was not written when Send returned: %q", r.conn.wrote)
		}
	})
}

func TestWhatWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		part := strings.Repeat("x", 1000)
		_ = r.send("1", true)
		_ = r.send("2", false)
		synctest.Wait()
		began := time.Now()
		sent := 0
		for ; time.Since(began) < 10*time.Millisecond; sent++ {
			_ = r.send(part, false)
		}
		if sent != maxWaiting/1000+2 {
			t.Errorf("%d messages of 1000 bytes were taken while one was written", sent)
		}
		large := strings.Repeat("y", tooLarge)
		_ = r.send(large, false)
		if last := r.conn.wrote[len(r.conn.wrote)-1]; last != large {
			t.Errorf("a large message was not written alone and at once: the last write has %d bytes", len(last))
		}
	})
}

func TestAWriteThatFailsLaterIsToldToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		_ = r.send("1", true)
		r.conn.fail = errors.New("broken pipe")
		if err := r.send("2", false); err != nil {
			t.Errorf("before it was written: %v", err)
		}
		_ = r.send("3", false)
		r.rest()
		if err := r.send("4", false); !errors.Is(err, r.conn.fail) {
			t.Errorf("after it failed: %v", err)
		}
		if len(r.conn.began) != 2 || !bytes.Equal([]byte(r.conn.wrote[0]), []byte("1")) {
			t.Errorf("it wrote on after a write had failed: %d writes", len(r.conn.began))
		}
	})
}
