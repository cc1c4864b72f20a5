package lifecycle

import (
	"io/fs"
	"math"
	"os"
	"runtime/debug"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// limitMemory tells the garbage collector how much memory the container has,
// when Config.MemoryLimitRatio asks for that: it then works harder before the
// limit is reached, where without it the kernel kills the process
// (runtime/debug.SetMemoryLimit).
//
// The limit belongs to the process and not to the App: whatever is in force
// already stays, be it from GOMEMLIMIT, from the program, or from another App,
// and it is not taken back when Run returns, because the container's does not
// go away then either.
func (a *App) limitMemory(root fs.FS) {
	ratio := a.cfg.MemoryLimitRatio
	if ratio == 0 {
		return
	}
	if env := os.Getenv("GOMEMLIMIT"); env != "" {
		a.log.Info("memory limit left as it is: GOMEMLIMIT is set", "GOMEMLIMIT", env)
		return
	}
	if now := debug.SetMemoryLimit(-1); now != math.MaxInt64 {
		a.log.Info("memory limit left as it is: one is set already", "bytes", now)
		return
	}
	limit, file, err := cgroup.MemoryLimit(root)
	if err != nil {
		a.log.Warn("memory limit of the control group", "error", err)
	}
	if limit == 0 {
		a.log.Info("memory limit not set: no control group has one")
		return
	}
	soft := max(int64(float64(limit)*ratio), 1)
	debug.SetMemoryLimit(soft)
	a.log.Info("memory limit set", "bytes", soft, "ratio", ratio, "of", limit, "file", file)
}
