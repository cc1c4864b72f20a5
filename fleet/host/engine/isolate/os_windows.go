package isolate

import (
	"errors"
	"os"
	"os/exec"
)

// Package procpool does not support Windows, so no child runs there.

func tryLock(*os.File) error       { return errors.ErrUnsupported }
func ownedByUs(string) error       { return errors.ErrUnsupported }
func (*Children) become(*exec.Cmd) {}
