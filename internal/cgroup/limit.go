package cgroup

import (
	"io/fs"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
)

// LimitMemory tells the garbage collector to keep the process within ratio of
// the control group's memory limit (runtime/debug.SetMemoryLimit). The collector
// then works harder near the limit; without it the kernel kills the process.
// root is the root of the file system. A ratio of 0 does nothing.
//
// LimitMemory keeps a limit that GOMEMLIMIT or the program has set already. It
// logs what it did and why.
func LimitMemory(log *slog.Logger, root fs.FS, ratio float64) {
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
	limit, file, err := MemoryLimit(root)
	if err != nil {
		log.Warn("memory limit of the control group", "error", err)
	}
	if limit == 0 {
		log.Info("memory limit not set: no control group has one")
		return
	}
	soft := max(int64(float64(limit)*ratio), 1)
	debug.SetMemoryLimit(soft)
	log.Info("memory limit set", "bytes", soft, "ratio", ratio, "of", limit, "file", file)
}
