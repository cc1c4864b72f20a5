package isolate

import (
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// threadWatch ends children that have more than maxThreads threads. No limit of a process counts
// its threads: RLIMIT_NPROC counts those of all processes of the user, and not for root. One
// goroutine looks at all children, while there are any.
type threadWatch struct {
	mu      sync.Mutex // guards everything below
	watched map[*process]*os.Process
	none    chan struct{} // closed when the last child goes, and nil while there is none
}

// lookEvery is how often the watch looks. A look at many children takes at most a fiftieth of the
// time.
const lookEvery = 10 * time.Millisecond

// add begins to watch a child that has answered, before it has code. A child whose process has
// ended and was started again is added again.
func (w *threadWatch) add(c *process) {
	p := c.cmd.Load().Process
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched == nil {
		w.watched = make(map[*process]*os.Process)
	}
	w.watched[c] = p
	if w.none == nil {
		w.none = make(chan struct{})
		go w.run(w.none)
	}
}

func (w *threadWatch) remove(c *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watched, c)
	if len(w.watched) == 0 && w.none != nil {
		close(w.none)
		w.none = nil
	}
}

// run looks at the children until the last one goes.
func (w *threadWatch) run(none <-chan struct{}) {
	for {
		began := time.Now()
		w.look()
		select {
		case <-none:
			return
		case <-time.After(max(lookEvery, 50*time.Since(began))):
		}
	}
}

func (w *threadWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c, p := range w.watched {
		if threads(p.Pid) > maxThreads {
			c.tooMany.Store(true)
			_ = p.Kill() // it may have ended
		}
	}
}

// threads returns how many threads a process has, and 0 when it has ended: the folder of its threads has
// a link for each, and two of its own.
func threads(pid int) int {
	var stat syscall.Stat_t
	if err := syscall.Stat("/proc/"+strconv.Itoa(pid)+"/task", &stat); err != nil {
		return 0
	}
	return int(stat.Nlink) - 2
}
