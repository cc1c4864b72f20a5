package cgroup

import (
	"context"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// readEvery is the shortest time between two looks at the control group.
const readEvery = 10 * time.Second

// LimitMemory tells the garbage collector to keep the process within ratio of
// the control group's memory limit (runtime/debug.SetMemoryLimit). The collector
// then works harder near the limit; without it the kernel kills the process.
// root is the root of the file system. A ratio of 0 does nothing.
//
// The limit changes when a pod is resized in place. Until ctx ends, LimitMemory reads it
// again after a garbage collection, at most every 10 seconds. So a process that does
// not allocate pays nothing.
//
// A limit that is in force already stays, whether GOMEMLIMIT or the program set
// it. LimitMemory logs what it did and why.
func LimitMemory(ctx context.Context, log *slog.Logger, root fs.FS, ratio float64) {
	if ratio == 0 {
		return
	}
	if env := os.Getenv("GOMEMLIMIT"); env != "" {
		log.Info("memory limit left as it is: GOMEMLIMIT is set", "GOMEMLIMIT", env)
		return
	}
	if now := debug.SetMemoryLimit(-1); now != math.MaxInt64 {
		log.Info("memory limit left as it is: one is set already", "bytes", now)
		return
	}
	f := &follower{ctx: ctx, log: log, root: root, ratio: ratio, set: math.MaxInt64, last: time.Now()}
	if limit := f.read(); limit == 0 {
		log.Info("memory limit not set: no control group has one")
	}
	f.arm()
}

// follower keeps the memory limit of the garbage collector in step with the control group's.
type follower struct {
	ctx   context.Context
	log   *slog.Logger
	root  fs.FS
	ratio float64

	mu   sync.Mutex // guards the fields below, and is held for a whole look
	set  int64      // the limit that this follower has set
	said string     // the last error
	last time.Time  // the last look
}

// arm makes the next garbage collection call collected.
func (f *follower) arm() {
	sentinel := new([64]byte) // unreachable from here on; not so small that it shares its memory with others
	runtime.AddCleanup(sentinel, func(f *follower) { f.collected() }, f)
}

// collected runs after a garbage collection, on a goroutine of the runtime, which must
// not wait for a file.
func (f *follower) collected() {
	if f.ctx.Err() != nil {
		return
	}
	f.arm()
	if !f.mu.TryLock() {
		return // a look is on, or hangs
	}
	due := time.Since(f.last) >= readEvery
	f.mu.Unlock()
	if due {
		go f.read()
	}
}

// read looks at the control group, sets the limit when it has changed, and returns the
// control group's.
func (f *follower) read() (limit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = time.Now()
	limit, file, err := MemoryLimit(f.root)
	if err != nil && err.Error() != f.said {
		f.said = err.Error()
		f.log.Warn("memory limit of the control group", "error", err)
	}
	soft := int64(math.MaxInt64)
	if limit > 0 {
		soft = max(int64(float64(limit)*f.ratio), 1)
	}
	switch now := debug.SetMemoryLimit(-1); {
	case soft == f.set, err != nil && limit == 0: // no change; a limit that cannot be read may still hold
	case now != f.set:
		f.log.Info("memory limit left as it is: the program has set one", "bytes", now)
		f.set = soft // said once for each change of the control group's
	default:
		debug.SetMemoryLimit(soft)
		f.set = soft
		f.log.Info("memory limit set", "bytes", soft, "ratio", f.ratio, "of", limit, "file", file)
	}
	return limit
}
