package operator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
)

// Limits of one request.
const (
	bodyTime  = 20 * time.Second // for a body to arrive
	writeTime = 30 * time.Second // for one write; after that the caller counts as not reading
)

// guard checks every request first: its size, the Host header, the origin, the
// caller, and the rate.
func (s *Server) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin") // with "no-referrer" a form has the origin "null", which does not say that it came over TLS
		w = &patient{ResponseWriter: w, out: http.NewResponseController(w)}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(w, s.timed(w, r.Body), s.cfg.MaxBody)
		}
		if err := s.checkHost(r); err != nil {
			s.refuse(w, r, err)
			return
		}
		if err := origin.Check(r); err != nil {
			s.refuse(w, r, Errorf(connect.CodePermissionDenied, ReasonOrigin, "", "the request comes from another site's page: open the dashboard itself"))
			return
		}
		// Another site's page may link here. It may not load anything from here, such as
		// an image: the browser sends this server's credentials with that too.
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			s.refuse(w, r, Errorf(connect.CodePermissionDenied, ReasonOrigin, "", "another site's page loads this: open the dashboard itself"))
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), remoteKey{}, r.RemoteAddr))
		if s.open(r) {
			next.ServeHTTP(w, r)
			return
		}
		who, err := s.recognise(r)
		if err != nil {
			if s.toLogin(w, r, err) {
				return
			}
			s.refuse(w, r, err)
			return
		}
		if wait, ok := s.rates.take(who.Method + " " + who.Name); !ok {
			h.Set("Retry-After", fmt.Sprint(int(wait/time.Second)+1))
			s.refuse(w, r, Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "", "too many requests of %s: at most %v a second", who.Name, s.cfg.Rate))
			return
		}
		r = r.WithContext(WithPrincipal(r.Context(), who))
		free, err := s.whole(r, who)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		defer free()
		next.ServeHTTP(w, r)
	})
}

type remoteKey struct{}

func remoteFrom(ctx context.Context) string {
	text, _ := ctx.Value(remoteKey{}).(string)
	return text
}

// checkHost refuses a request that a browser sends here for another site: an attacker
// can make a name point to this address (DNS rebinding).
func (s *Server) checkHost(r *http.Request) error {
	host := hostname(r.Host)
	for _, allowed := range s.cfg.Hosts {
		if strings.EqualFold(host, allowed) {
			return nil
		}
	}
	if loopbackName(host) || len(s.cfg.Hosts) == 0 && !s.onLoopback(r) {
		return nil
	}
	return Errorf(connect.CodePermissionDenied, ReasonHost, "", "the Host header names %q, which is not this server: see Config.Hosts", clip(host, 128))
}

func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func loopbackName(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// onLoopback reports whether the connection begins and ends on this machine.
func (s *Server) onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && loopbackName(hostname(local.String())) && loopbackName(hostname(r.RemoteAddr))
}

// proxyHeaders are those that proxies add.
var proxyHeaders = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}

// recognise returns the caller.
func (s *Server) recognise(r *http.Request) (Principal, error) {
	if s.cfg.Auth == nil {
		// A proxy on this machine forwards for callers on other machines.
		forwarded := slices.ContainsFunc(proxyHeaders, func(name string) bool { return r.Header.Get(name) != "" })
		if !s.onLoopback(r) || forwarded || s.cfg.LoopbackRole == RoleNone {
			return Principal{}, Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "", "this server has no authentication and serves only its own machine")
		}
		return Principal{Name: "loopback", Role: s.cfg.LoopbackRole, Method: "loopback"}, nil
	}
	remote := hostname(r.RemoteAddr)
	r, who := s.withSession(r)
	if who != nil {
		return *who, nil
	}
	key := credentials(r)
	if !s.failures.has(remote) && !s.trusted.has(key) {
		return Principal{}, Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "", "too many requests without good credentials from your address: wait a moment")
	}
	p, err := s.cfg.Auth.Authenticate(r)
	switch {
	case err == nil && p.most().atLeast(RoleViewer):
		s.trusted.add(key)
		return p, nil
	case err == nil:
		err = ErrBadCredentials
	}
	var text string
	code, reason := connect.CodeUnauthenticated, ReasonUnauthenticated
	switch {
	case errors.Is(err, ErrNoCredentials):
		text = "no credentials: send Authorization: Bearer TOKEN, or a client certificate"
	case errors.Is(err, ErrExpired):
		reason, text = ReasonExpired, "the credentials have expired: ask for new ones"
	case errors.Is(err, ErrBadCredentials):
		text = "the credentials are not known here"
	default:
		s.log.Error("operator: cannot check credentials", "error", err)
		code, reason, text = connect.CodeUnavailable, ReasonUnavailable, "the credentials cannot be checked now: the server's log says why"
	}
	if !errors.Is(err, ErrNoCredentials) {
		s.failures.take(remote)
		if code == connect.CodeUnauthenticated {
			s.trusted.drop(key)
		}
		s.log.Warn("operator: refused", "remote", r.RemoteAddr, "reason", text)
	}
	return Principal{}, Errorf(code, reason, "", "%s", text)
}

// refuse refuses a request: with a page when a browser asks for one, and otherwise with
// the function refuse.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if strings.HasPrefix(r.URL.Path, "/ui/") && strings.Contains(r.Header.Get("Accept"), "text/html") {
		err = wire(r.Context(), s.log, "", err)
		s.ui.Refuse(w, r, httpStatus(err), message(err))
		return
	}
	refuse(w, r, err)
}

// refuse answers a refused request in the request's own protocol.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = wire(r.Context(), nil, "", err)
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="lifecycle"`)
	}
	if isRPC(r.URL.Path) {
		if errs := connect.NewErrorWriter(); errs.IsSupported(r) {
			_ = errs.Write(w, r, err) // fails when the caller has gone
			return
		}
	}
	writeStatus(w, err)
}

// httpStatus returns the HTTP status of an error that wire has made.
func httpStatus(err error) int {
	if errorReason(err) == ReasonBodyTooLarge {
		return http.StatusRequestEntityTooLarge
	}
	return httpcode.Of(connect.CodeOf(err))
}

// isRPC reports whether a path belongs to an RPC, not to REST.
func isRPC(path string) bool {
	return strings.HasPrefix(path, "/lifecycle.operator.") || strings.HasPrefix(path, "/grpc.")
}

// patient gives every write of a response its own deadline, where the connection
// supports it (HTTP/1.1 and 2 do). So the server disconnects a caller that does
// not read, but not one that reads slowly.
type patient struct {
	http.ResponseWriter
	out *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.out.SetWriteDeadline(time.Now().Add(writeTime))
	return p.ResponseWriter.Write(b)
}

func (p *patient) Flush() {
	_ = p.out.SetWriteDeadline(time.Now().Add(writeTime))
	p.out.Flush()
}

func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// timed sets a deadline for the body. It clears the deadline when the whole body
// has arrived, because on HTTP/1 it would end the response too. It keeps the
// deadline for a body that failed; otherwise reading the rest of that body could
// take forever.
func (s *Server) timed(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Now().Add(bodyTime))
	return &timedBody{ReadCloser: body, out: out}
}

type timedBody struct {
	io.ReadCloser
	out    *http.ResponseController
	failed error // the error of a Read, returned by every later one
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.failed = err
		if errors.Is(err, io.EOF) {
			_ = b.out.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// trusted remembers credentials that were valid recently. When another caller guesses
// from the same address, such as a proxy's, these are still let through to be checked.
type trusted struct {
	mu   sync.Mutex // guards the fields below
	keys map[[sha256.Size]byte]time.Time
}

// trustedFor is how long unused credentials are remembered.
const trustedFor = time.Hour

// credentials returns a digest that identifies the request's credentials without
// keeping them.
func credentials(r *http.Request) [sha256.Size]byte {
	sum := sha256.New()
	_, _ = io.WriteString(sum, r.Header.Get("Authorization"))
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		_, _ = sum.Write([]byte{0})
		_, _ = sum.Write(r.TLS.PeerCertificates[0].Raw)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

func (t *trusted) has(key [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.keys[key]
	return ok && time.Since(at) < trustedFor
}

func (t *trusted) drop(key [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.keys, key)
}

func (t *trusted) add(key [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.keys[key]; !ok && len(t.keys) >= maxLimiters {
		maps.DeleteFunc(t.keys, func(_ [sha256.Size]byte, at time.Time) bool { return time.Since(at) >= trustedFor })
		if len(t.keys) >= maxLimiters {
			clear(t.keys)
		}
	}
	t.keys[key] = time.Now()
}

// limiters are token buckets by name, in bounded memory.
type limiters struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex // guards the fields below
	names map[string]*rate.Limiter
}

// maxLimiters is how many buckets there may be before idle ones are removed.
const maxLimiters = 4096

// take takes one token. When there is none it returns the time until the next.
func (l *limiters) take(name string) (time.Duration, bool) {
	now := time.Now()
	b := l.bucket(name, now)
	if b.AllowN(now, 1) {
		return 0, true
	}
	return time.Duration(float64(time.Second) / float64(l.rate)), false
}

// has reports whether there is a token, without taking it.
func (l *limiters) has(name string) bool {
	now := time.Now()
	return l.bucket(name, now).TokensAt(now) >= 1
}

func (l *limiters) bucket(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.names[name]
	if b == nil {
		if len(l.names) >= maxLimiters {
			for n, old := range l.names { // a full bucket equals a new one
				if old.TokensAt(now) >= float64(l.burst) {
					delete(l.names, n)
				}
			}
			if len(l.names) >= maxLimiters {
				clear(l.names)
			}
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.names[name] = b
	}
	return b
}
