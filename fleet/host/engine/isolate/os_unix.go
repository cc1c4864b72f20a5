//go:build !windows

package isolate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// tryLock locks the file for this process, or returns an error when another process
// has it.
func tryLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// ownedByUs returns an error unless path is a folder of this user.
func ownedByUs(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of this user alone", path)
	}
	return nil
}

// become sets the user of a child.
func (c *Children) become(cmd *exec.Cmd) {
	if c.cfg.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.cfg.UID), Gid: uint32(c.cfg.GID)}}
	}
}
