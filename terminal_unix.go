//go:build unix

package lifecycle

import "os"

// atTerminal reports whether the process can be reached by Ctrl-C, and is not
// in Kubernetes: it has a controlling terminal.
func atTerminal() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = tty.Close()
	return true
}
