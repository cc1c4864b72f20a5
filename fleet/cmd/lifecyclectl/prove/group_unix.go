//go:build unix

package prove

import (
	"os/exec"
	"syscall"
)

// ownGroup gives kubectl a process group of its own: Ctrl-C of a terminal ends this
// process, which then puts everything back, and not the kubectl that does so.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
