// Package identity makes names by which the processes of a fleet know each other.
//
// Begin with [New], which makes an id that no other process has. [Host] and [Process] are
// for people. It imports only the standard library.
package identity

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// maxHost bounds the host's part of a name, in bytes.
const maxHost = 100

// Host returns the host's name, and "unknown" when the system has none. In
// Kubernetes it is the pod's name.
func Host() string {
	if h, err := os.Hostname(); err == nil && h != "" {
		return h
	}
	return "unknown"
}

// Process returns "HOST/PID". A process that starts again in a container may get the
// same name.
func Process() string { return fmt.Sprintf("%s/%d", Host(), os.Getpid()) }

// New returns a new, unique id: at most 100 characters of the host's name, a dash and a
// random part. It is a [Token].
func New() string {
	host := Token(Host())
	return host[:min(len(host), maxHost)] + "-" + strings.ToLower(rand.Text()[:10])
}

// Token returns text with a dash in place of each character that a token of a subject, a
// key or a consumer's name cannot have. ASCII letters, digits, - and _ stay.
func Token(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, text)
}
