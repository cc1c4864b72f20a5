package procpool_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestProcessesOfAPoolAreBounded(t *testing.T) {
	p := start(t, "serve", func(cfg *procpool.Config) {
		cfg.MaxWorkers = 2
		cfg.MinWorkers = 2
		cfg.Process = []worker.ProcessOption{worker.WithLimits(worker.Limits{Files: 77})}
	})
	if got := do(t, p, ask{Op: "files"}.raw()); got != "77" {
		t.Errorf("a worker may have %s files", got)
	}
	eventually(t, "both are ready", func() bool { return p.Stats().Ready == 2 })
	for _, child := range p.State().Children {
		if c := child.Containment; c == nil || c.Limits.Files != 77 || len(c.Missing) != 0 {
			t.Errorf("%s is contained by %+v", child.Name, c)
		}
	}
}
