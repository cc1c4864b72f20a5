//go:build !windows

package isolate

import (
	"os/exec"
	"syscall"
)

// setUser sets the user of a child.
func (c *Children) setUser(cmd *exec.Cmd) {
	if c.cfg.UID != 0 {
		user := &syscall.Credential{Uid: uint32(c.cfg.UID), Gid: uint32(c.cfg.GID)}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	}
}
