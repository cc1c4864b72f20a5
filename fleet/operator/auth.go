package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/token"
)

// Role is what a caller may do.
type Role string

// The roles.
const (
	RoleNone      Role = ""          // nothing
	RoleViewer    Role = "viewer"    // read
	RoleInspector Role = "inspector" // read, also the logs, stacks and configuration of processes
	RoleOperator  Role = "operator"  // read and act
)

// roles are the roles, from the least to the one that includes all.
var roles = []Role{RoleNone, RoleViewer, RoleInspector, RoleOperator}

// atLeast reports whether r includes the role need. An unknown role includes none.
func (r Role) atLeast(need Role) bool { return slices.Index(roles, r) >= slices.Index(roles, need) }

// ParseRole returns the role of that name, and an error for any other text.
func ParseRole(text string) (Role, error) {
	if r := Role(text); r.atLeast(RoleViewer) {
		return r, nil
	}
	return RoleNone, fmt.Errorf("role %q: want viewer, inspector or operator", text)
}

// Principal is an authenticated caller.
type Principal struct {
	Name   string
	Role   Role      // in the whole fleet; RoleNone for a caller who only has Grants
	Grants []Grant   // roles in parts of the fleet; their subjects have no meaning here
	Method string    // how it was authenticated: "token", "certificate", "kubernetes", "oidc", "loopback"
	Until  time.Time // when the credentials expire, the zero time for never
}

// id identifies a caller: two ways to sign in may know the same name.
func (p Principal) id() string { return p.Method + " " + p.Name }

// Authenticator identifies the caller of a request, and every 5 s the caller of an open watch again: the
// watch ends when that fails or gives another role. It may be called concurrently.
type Authenticator interface {
	// Authenticate returns ErrNoCredentials when the request carries none of its
	// kind; then the next Authenticator is asked. Any other error refuses the
	// request: ErrBadCredentials, ErrExpired, an [*Error], or that the credentials cannot
	// be checked now.
	Authenticate(r *http.Request) (Principal, error)
}

// The errors of an Authenticator.
var (
	ErrNoCredentials  = errors.New("no credentials")
	ErrBadCredentials = errors.New("the credentials are not known")
	ErrExpired        = errors.New("the credentials have expired")
)

// Anyone asks several authenticators in order. A bearer token that one does not know
// may be known to the next.
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

// WithPrincipal returns a context whose caller is p. The server does this for every
// request. Use it in handlers beside the server, and in tests.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller of a request that the server accepted, and false
// for any other context.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// fileCache is the content of a file, which is read again at most once a second. While the
// file cannot be read or parsed there is no value: a typo must not make valid again what was
// revoked.
type fileCache[T any] struct {
	path  string
	what  string
	log   *slog.Logger
	now   func() time.Time
	parse func([]byte) (T, error)

	mu     sync.Mutex // guards the fields below
	read   time.Time
	value  T
	broken error
}

// newFileCache returns a fileCache of a file that can be read now.
func newFileCache[T any](path, what string, log *slog.Logger, parse func([]byte) (T, error)) (*fileCache[T], error) {
	f := &fileCache[T]{path: path, what: what, log: cmp.Or(log, slog.Default()), now: time.Now, parse: parse}
	f.readLocked() // nothing else has it yet
	return f, f.broken
}

// get returns the value, or the error for which there is none.
func (f *fileCache[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if age := f.now().Sub(f.read); age >= 0 && age < time.Second {
		return f.value, f.broken
	}
	was := f.broken
	f.readLocked()
	switch {
	case f.broken == nil && was != nil:
		f.log.Info("operator: "+f.what+" was read", "file", f.path)
	case f.broken != nil && (was == nil || was.Error() != f.broken.Error()):
		f.log.Error("operator: "+f.what+" cannot be used: everything that depends on it is refused", "error", f.broken)
	}
	return f.value, f.broken
}

func (f *fileCache[T]) readLocked() {
	f.read = f.now()
	var none T
	f.value = none
	text, err := os.ReadFile(f.path)
	if err == nil {
		if f.value, err = f.parse(text); err != nil {
			err = fmt.Errorf("%s: %w", f.path, err)
		}
	}
	f.broken = err
}
