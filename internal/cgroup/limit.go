package cgroup

import (
	"context"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"time"
)

// readEvery is the time between two looks at the control group.
const readEvery = 10 * time.Second

// LimitMemory tells the garbage collector to keep the process within ratio of
// the control group's memory limit (runtime/debug.SetMemoryLimit). The collector
// then works harder near the limit; without it the kernel kills the process.
// root is the root of the file system. A ratio of 0 does nothing.
//
// The limit changes when a pod is resized in place. Until ctx ends, a goroutine reads it
// again every 10 seconds.
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
	f := &follower{log: log, root: root, ratio: ratio, set: math.MaxInt64}
	if limit := f.read(); limit == 0 {
		log.Info("memory limit not set: no control group has one")
	}
	go f.follow(ctx)
}

// follower keeps the memory limit of the garbage collector in step with the control group's.
type follower struct {
	log   *slog.Logger
	root  fs.FS
	ratio float64
	set   int64  // the limit that this follower has set
	said  string // the last error
}

func (f *follower) follow(ctx context.Context) {
	again := time.NewTicker(readEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			f.read()
		case <-ctx.Done():
			return
		}
	}
}

// read looks at the control group, sets the limit when it has changed, and returns the
// control group's.
func (f *follower) read() (limit int64) {
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
