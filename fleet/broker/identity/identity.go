// Package identity names this process to the others of a fleet.
package identity

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// maxHost bounds the host's part of a name.
const maxHost = 100

// Host returns the host's name, and "unknown" when the system has none. In
// Kubernetes it is the pod's name.
func Host() string {
	if h, err := os.Hostname(); err == nil && h != "" {
		return h
	}
	return "unknown"
}

// Process returns "HOST/PID". A process that is started again in a container can
// have the same one.
func Process() string { return fmt.Sprintf("%s/%d", Host(), os.Getpid()) }

// New returns an id that no process has had: the host's name, at most 100
// characters of it, a dash and a random part. It is a [Token].
func New() string {
	host := Token(Host())
	return host[:min(len(host), maxHost)] + "-" + strings.ToLower(rand.Text()[:10])
}

// Token replaces in text every character that cannot be in one token of a
// subject, a key or a consumer's name by a dash: letters, digits, - and _ of
// ASCII stay.
func Token(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, text)
}
