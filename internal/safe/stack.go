package safe

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// MaxDump is the most that a dump of all goroutines may take, in bytes.
const MaxDump = 8 << 20

// GoroutineID returns the id of the calling goroutine, as stack traces print
// it, or 0. It is for finding a stack in a dump and for nothing else.
func GoroutineID() uint64 {
	var buf [64]byte
	// "goroutine 123 [running]:"
	rest, ok := bytes.CutPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
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

// Dump returns the stacks of all goroutines, cut at [MaxDump]. It stops the
// whole process while it looks at them: about 100 ms for 100 000 goroutines, and
// a second for a million.
func Dump() []byte {
	// A try that finds too little room costs as much as one that succeeds, so
	// the first is made with what most stacks fit in.
	for size := max(64<<10, 1<<10*runtime.NumGoroutine()); ; size *= 8 {
		buf := make([]byte, min(size, MaxDump))
		if n := runtime.Stack(buf, true); n < len(buf) || len(buf) == MaxDump {
			return buf[:n]
		}
	}
}

// recent is the last dump that [Stack] took.
var recent struct {
	mu   sync.Mutex
	at   time.Time
	dump []byte
}

// Stack returns the stack of one goroutine, or "" when there is no such
// goroutine. A dump stops the whole process while it is taken, so many calls
// within 100 ms share one.
func Stack(goid uint64) string {
	recent.mu.Lock()
	defer recent.mu.Unlock()
	if age := time.Since(recent.at); age >= 0 && age < 100*time.Millisecond {
		if stack := StackOf(recent.dump, goid); stack != "" {
			return stack
		}
	}
	recent.dump, recent.at = Dump(), time.Now()
	return StackOf(recent.dump, goid)
}

// StackOf cuts the stack of one goroutine out of a dump. It returns "" when
// the goroutine is not in it.
func StackOf(dump []byte, goid uint64) string {
	if goid == 0 {
		return ""
	}
	head := []byte("goroutine " + strconv.FormatUint(goid, 10) + " ")
	for len(dump) > 0 {
		block, rest, _ := bytes.Cut(dump, []byte("\n\n"))
		if bytes.HasPrefix(block, head) {
			return string(block)
		}
		dump = rest
	}
	return ""
}
