//go:build unix

package procpool_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// K20: a pool, a process and a container tell the stop times that they were given. Defaults
// give way to the App's times and are not told.
func TestStopTimesOfPartsAreTold(t *testing.T) {
	pool := func(cfg procpool.Config) time.Duration {
		cfg.Command = func() *exec.Cmd { return self("serve") }
		p, err := procpool.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return p.StopTime()
	}
	for name, c := range map[string]struct{ got, want time.Duration }{
		"pool":           {pool(procpool.Config{DrainTimeout: 5 * time.Minute, KillGrace: time.Second}), 301 * time.Second},
		"default pool":   {pool(procpool.Config{}), 0},
		"process":        {worker.NewProcess("p", self("serve"), worker.WithGrace(time.Minute)).StopTime(), time.Minute},
		"default":        {worker.NewProcess("p", self("serve")).StopTime(), 0},
		"container":      {worker.NewContainer("c", nil, worker.ContainerSpec{}, worker.WithContainerGrace(time.Hour)).StopTime(), time.Hour},
		"default of one": {worker.NewContainer("c", nil, worker.ContainerSpec{}).StopTime(), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}
