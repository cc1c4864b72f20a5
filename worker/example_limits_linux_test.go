package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A limit of each process needs no cgroup.
func ExampleWithLimits() {
	cmd := exec.Command("sh", "-c", "ulimit -n")
	cmd.Stdout = os.Stdout
	p := worker.NewProcess("import", cmd, worker.WithLimits(worker.Limits{Files: 100, PIDs: 20}))
	if err := p.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	<-p.Done()
	fmt.Println(p.State().Containment.Missing)
	// Output:
	// 100
	// [pids: the process has no cgroup]
}

// The service's unit has Delegate=yes and DelegateSubgroup=main, so systemd makes
// /sys/fs/cgroup/system.slice/imports.service for the service to use, and starts it
// in the cgroup main below that.
func ExampleWithCgroup() {
	p := worker.NewProcess("import", exec.Command("/usr/bin/import", "all"),
		worker.WithCgroup("/sys/fs/cgroup/system.slice/imports.service"),
		worker.WithLimits(worker.Limits{Memory: 512 << 20, PIDs: 50, CPU: 1.5, Required: true}))
	if err := p.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	<-p.Done()
	fmt.Println("the most memory in use:", p.State().Containment.Usage.MemoryPeak)
}
