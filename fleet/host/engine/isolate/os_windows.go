package isolate

import "os/exec"

// Package procpool does not support Windows, so no child runs there.

func (*Children) setUser(*exec.Cmd) {}
