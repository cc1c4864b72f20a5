package call

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// MaxDump is the largest dump of all goroutines, in bytes.
const MaxDump = 8 << 20

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
		stacks map[uint64]string // by the number of the call; nil when no call needs the dump any more
	}
)

// Stack returns the stack of the goroutine that makes the call with this number, or
// "" when there is none. A dump stops the whole process while it is taken, so all
// callers that come before it is taken share it.
func Stack(number uint64) string {
	arrival := arrivals.Add(1)
	recent.mu.Lock()
	defer recent.mu.Unlock()
	if recent.stacks == nil || recent.covers < arrival {
		recent.covers = arrivals.Load()
		recent.stacks = stacks(Dump())
	}
	stack := recent.stacks[number]
	if departures.Add(1) == arrivals.Load() {
		recent.stacks = nil
	}
	return stack
}

// frames are how the lines of the frames of run and runUncaught begin in a stack trace.
// Their first argument is the number of the call.
var frames = [][]byte{
	[]byte("\ngithub.com/pleme-io/lifecycle-go/internal/call.run(0x"),
	[]byte("\ngithub.com/pleme-io/lifecycle-go/internal/call.runUncaught(0x"),
}

// stacks cuts a dump into the stacks of the goroutines that [Go] and [Call.Start]
// started, by the numbers of their calls. A goroutine's id would do as well, but to
// learn its own costs a goroutine more than all else that is done for a call.
func stacks(dump []byte) map[uint64]string {
	out := make(map[uint64]string)
	for len(dump) > 0 {
		block, rest, _ := bytes.Cut(dump, []byte("\n\n"))
		for _, frame := range frames {
			i := bytes.LastIndex(block, frame)
			if i < 0 {
				continue
			}
			digits := block[i+len(frame):]
			n := bytes.IndexFunc(digits, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
			if number, err := strconv.ParseUint(string(digits[:max(n, 0)]), 16, 64); err == nil {
				out[number] = string(block)
			}
		}
		dump = rest
	}
	return out
}
