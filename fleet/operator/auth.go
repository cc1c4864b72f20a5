package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/token"
)

// Role says what somebody may do.
type Role string

// The roles.
const (
	RoleNone     Role = ""         // nothing
	RoleViewer   Role = "viewer"   // read
	RoleOperator Role = "operator" // read and act
)

// ParseRole returns the role of that name, and an error for any other text.
func ParseRole(text string) (Role, error) {
	switch r := Role(text); r {
	case RoleViewer, RoleOperator:
		return r, nil
	}
	return RoleNone, fmt.Errorf("role %q: want viewer or operator", text)
}

// Principal is somebody who was recognised.
type Principal struct {
	Name   string
	Role   Role
	Method string    // how: "token", "certificate", "kubernetes", "loopback"
	Until  time.Time // when the credentials end, the zero time for never
}

// Authenticator recognises who sends a request. It may be called concurrently.
type Authenticator interface {
	// Authenticate returns ErrNoCredentials when the request carries none of
	// its kind, and the next Authenticator is asked. Any other error refuses
	// the request: ErrBadCredentials, ErrExpired, or that it cannot be known.
	Authenticate(r *http.Request) (Principal, error)
}

// What an Authenticator says of credentials.
var (
	ErrNoCredentials  = errors.New("no credentials")
	ErrBadCredentials = errors.New("the credentials are not known")
	ErrExpired        = errors.New("the credentials have expired")
)

// Anyone asks several authenticators, in their order. A bearer token that the
// one does not know may be known to the next.
func Anyone(list ...Authenticator) Authenticator { return anyone(list) }

type anyone []Authenticator

func (list anyone) Authenticate(r *http.Request) (Principal, error) {
	result := ErrNoCredentials
	for _, a := range list {
		p, err := a.Authenticate(r)
		if err == nil {
			return p, nil
		}
		if errors.Is(result, ErrNoCredentials) || errors.Is(result, ErrBadCredentials) && !errors.Is(err, ErrNoCredentials) {
			result = err
		}
	}
	return Principal{}, result
}

// bearer returns the request's bearer token (RFC 6750, section 2.1).
func bearer(r *http.Request) (string, error) {
	text, given := token.Bearer(r.Header)
	switch {
	case !given:
		return "", ErrNoCredentials
	case text == "":
		return "", ErrBadCredentials
	}
	return text, nil
}

type principalKey struct{}

// WithPrincipal returns a context in which p is the caller. The server does
// this for every request; it is for handlers beside it and for tests.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller of a request that the server let in, and
// false in any other context.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}
