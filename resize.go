package lifecycle

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// Resources are what the process may use, as the pod's limits are now.
type Resources struct {
	// Memory is the lowest memory limit of the process's control groups in bytes, 0 for none.
	Memory int64
	// CPUs is [runtime.GOMAXPROCS], which follows the limit of processor time of the control
	// groups unless the program or the variable GOMAXPROCS has set it.
	CPUs int
}

// lookEvery is how often the App looks at its resources while a function of OnResize is
// registered.
const lookEvery = 10 * time.Second

// OnResize registers fn to be called with what the process may use: once the App is running,
// and again within some 10 seconds of each change, such as the in-place resize of a pod. fn
// sets the sizes of pools, caches and limits.
//
// A call counts as a reload of this name, with all that [App.OnReload] says: it waits for its
// turn among the reloads, has ReloadTimeout, and a failure is logged and reported. The next
// change is told all the same. No call begins once the App drains.
func (a *App) OnResize(name string, fn func(context.Context, Resources) error) *App {
	a.parts.add("reload", name, missing("OnResize", argument{"function", fn == nil}), func() {
		a.parts.resizes = append(a.parts.resizes, &reloader{namedFunc: namedFunc{name, func(ctx context.Context) error {
			return fn(ctx, a.reloads.resources)
		}}})
	})
	return a
}

// followResources tells the functions of OnResize what the process may use, until the drain.
func (a *App) followResources() {
	if len(a.parts.resizes) == 0 {
		return
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for said := ""; ; {
		now := Resources{CPUs: runtime.GOMAXPROCS(0)}
		var err error
		now.Memory, _, err = cgroup.MemoryLimit(os.DirFS("/"))
		if err == nil {
			said = ""
		}
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			a.log.Warn("memory limit of the control group", "error", err)
		case err == nil && now != a.reloads.resources:
			a.log.Info("resources", "memory", now.Memory, "cpus", now.CPUs)
			_ = a.inTurn(a.reloads.ctx, func() error { // runReloads logs and reports the errors
				a.reloads.resources = now
				return a.runReloads(a.parts.resizes)
			})
		}
		select {
		case <-a.Draining():
			return
		case <-look.C:
		}
	}
}
