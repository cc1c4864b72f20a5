package presence

import "time"

// watched keeps the time of every process that a watch has seen: an entry of a
// bucket that expires makes no message.
type watched struct {
	ttl    time.Duration
	gone   chan string // the ids whose time may be over
	done   chan struct{}
	timers map[string]*life
}

// life is one process' time. Only the watch's own goroutine touches it.
type life struct {
	timer *time.Timer
	until time.Time
}

func newWatched(ttl time.Duration) *watched {
	return &watched{ttl: ttl + ttl/6, gone: make(chan string), done: make(chan struct{}), timers: map[string]*life{}}
}

// renew says that a process was heard of.
func (w *watched) renew(id string) {
	l := w.timers[id]
	if l == nil {
		l = &life{}
		w.timers[id] = l
		l.timer = time.AfterFunc(w.ttl, func() {
			select {
			case w.gone <- id:
			case <-w.done:
			}
		})
	}
	l.until = time.Now().Add(w.ttl)
	l.timer.Reset(w.ttl)
}

// expired reports whether a process' time is over, and forgets it. A timer that
// fired just before a renewal is not the end.
func (w *watched) expired(id string) bool {
	l := w.timers[id]
	if l == nil || time.Now().Before(l.until) {
		return false
	}
	return w.drop(id)
}

// drop forgets a process, and reports whether it was known.
func (w *watched) drop(id string) bool {
	l := w.timers[id]
	if l == nil {
		return false
	}
	l.timer.Stop()
	delete(w.timers, id)
	return true
}

func (w *watched) close() {
	close(w.done)
	for _, l := range w.timers {
		l.timer.Stop()
	}
}
