//go:build linux

package lifecycle

import (
	"syscall"
	"testing"
)

func init() {
	scenarios["at rest"] = func() int {
		_ = scenarioApp()
		var children syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children); err != nil {
			say("%v", err)
			return 1
		}
		say("memory of child processes: %d", children.Maxrss) // more than 0 once one has ended
		return 0
	}
}

// A program that imports the library and makes an App has started no other process:
// package os starts one when it is asked whether the kernel has pidfds.
func TestMakingAnAppStartsNoProcess(t *testing.T) {
	p := launch(t, "at rest", Config{})
	p.wantExit(0)
	p.says("memory of child processes: 0")
}
