//go:build unix

package prove

import (
	"os/exec"
	"syscall"
)

// apart gives kubectl a process group of its own: Ctrl-C of a terminal ends this
// process, which then puts everything back, and not the kubectl that does so.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
