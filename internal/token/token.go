// Package token reads, checks and compares bearer tokens (RFC 6750), for the
// admin endpoints of an App and for the operators' server.
package token

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// Check returns an error for a token with fewer than least or more than most
// characters, or with a character that a header cannot have. The error never
// contains the token.
func Check(token string, least, most int) error {
	switch n := len(token); {
	case n < least:
		return fmt.Errorf("the token has %d characters, want %d or more", n, least)
	case n > most:
		return fmt.Errorf("the token has %d characters, want %d or fewer", n, most)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("a header cannot have the token: byte %d is not a visible ASCII character", i)
		}
	}
	return nil
}

// ReadFile reads the token in a file, without the space around it, and checks it
// as [Check] does.
func ReadFile(name string, least, most int) (string, error) {
	// Opening a pipe can block for ever.
	if info, err := os.Stat(name); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: %v", name, info.Mode().Type())
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 4*int64(most)))
	if err != nil {
		return "", err
	}
	token := string(bytes.TrimSpace(b))
	if err := Check(token, least, most); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return token, nil
}

// MaxBearer is the length of the longest token that [Bearer] accepts. The tokens
// of Kubernetes service accounts have a few thousand characters.
const MaxBearer = 8 << 10

// Bearer returns the bearer token of a request's header. given reports whether
// the request has an Authorization header. token is "" unless the request has
// exactly one, with the scheme Bearer and a token of at most 8192 characters.
func Bearer(h http.Header) (token string, given bool) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || len(token) > MaxBearer {
		return "", true
	}
	return token, true
}

// Digest identifies a token. All digests have the same length, so the time of a
// comparison reveals nothing about the token, not even its length.
type Digest [sha256.Size]byte

// DigestOf returns the SHA-256 digest of token.
func DigestOf(token string) Digest { return sha256.Sum256([]byte(token)) }

// Equal compares in constant time.
func (d Digest) Equal(other Digest) bool { return subtle.ConstantTimeCompare(d[:], other[:]) == 1 }
