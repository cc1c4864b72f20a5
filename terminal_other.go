//go:build !unix

package lifecycle

import "os"

// atTerminal reports whether the process can be reached by Ctrl-C, and is not
// in Kubernetes: its standard input is a console.
func atTerminal() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return false
	}
	info, err := os.Stdin.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
