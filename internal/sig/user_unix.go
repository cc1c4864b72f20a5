//go:build unix

package sig

import (
	"fmt"
	"os"
	"syscall"
)

// User returns the signal of that name, which has no meaning but the one that a program
// gives it. For the empty name it returns nil.
func User(name string) (os.Signal, error) {
	switch name {
	case "":
		return nil, nil
	case "SIGUSR1":
		return syscall.SIGUSR1, nil
	case "SIGUSR2":
		return syscall.SIGUSR2, nil
	}
	return nil, fmt.Errorf("%q is not a signal for that, want SIGUSR1 or SIGUSR2", name)
}
