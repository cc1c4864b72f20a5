package call

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

// MaxDump is the largest dump of all goroutines, in bytes.
const MaxDump = 8 << 20

// GoroutineID returns the id of the calling goroutine, as stack traces print it,
// or 0. Use it only to find a stack in a dump.
func GoroutineID() uint64 {
	var buf [64]byte
	return idOf(buf[:runtime.Stack(buf[:], false)])
}

// idOf reads the id in "goroutine 123 [running]:".
func idOf(stack []byte) uint64 {
	rest, ok := bytes.CutPrefix(stack, []byte("goroutine "))
	if !ok {
		return 0
	}
	digits, _, _ := bytes.Cut(rest, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// Dump returns the stacks of all goroutines, cut at [MaxDump]. It stops the whole
// process meanwhile: about 100 ms for 100 000 goroutines, and a second for a
// million.
func Dump() []byte {
	// An attempt with too small a buffer costs as much as one that succeeds. So
	// the first attempt uses a buffer that is large enough for most dumps.
	for size := max(64<<10, 1<<10*runtime.NumGoroutine()); ; size *= 8 {
		buf := make([]byte, min(size, MaxDump))
		if n := runtime.Stack(buf, true); n < len(buf) || len(buf) == MaxDump {
			return buf[:n]
		}
	}
}

// arrivals and departures count the calls of [Stack]. recent is the last dump.
var (
	arrivals, departures atomic.Uint64

	recent struct {
		mu     sync.Mutex
		covers uint64            // the number of calls that came before the dump was taken
		stacks map[uint64]string // by goroutine; nil when no call needs the dump any more
	}
)

// Stack returns the stack of one goroutine, or "" when there is no such
// goroutine. A dump stops the whole process while it is taken, so all callers
// that come before it is taken share it.
func Stack(goid uint64) string {
	arrival := arrivals.Add(1)
	recent.mu.Lock()
	defer recent.mu.Unlock()
	if recent.stacks == nil || recent.covers < arrival {
		recent.covers = arrivals.Load()
		recent.stacks = stacks(Dump())
	}
	stack := recent.stacks[goid]
	if departures.Add(1) == arrivals.Load() {
		recent.stacks = nil
	}
	return stack
}

// stacks cuts a dump into the stacks of its goroutines.
func stacks(dump []byte) map[uint64]string {
	out := make(map[uint64]string)
	for len(dump) > 0 {
		block, rest, _ := bytes.Cut(dump, []byte("\n\n"))
		if id := idOf(block); id != 0 {
			out[id] = string(block)
		}
		dump = rest
	}
	return out
}
