package sig

import (
	"os"
	"runtime"
)

// AtTerminal reports whether a user can press Ctrl-C: the process is not in
// Kubernetes and has a controlling terminal, or on Windows a console as its standard
// input.
func AtTerminal() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return false
	}
	if runtime.GOOS == "windows" {
		info, err := os.Stdin.Stat()
		return err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = tty.Close()
	return true
}
