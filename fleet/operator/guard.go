package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
	"github.com/pleme-io/lifecycle-go/trace"
)

// guard checks every request first, in this order: the Host header, the origin, the caller,
// the rate, and the size of the body.
func (s *Server) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(trace.FromHeader(r.Header).In(r.Context()))
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		// With "no-referrer" a form has the origin "null", which does not say that it came over TLS.
		h.Set("Referrer-Policy", "same-origin")
		out := http.NewResponseController(w)
		w = &deadlineWriter{ResponseWriter: w, out: out}
		if r.Body != nil && r.Body != http.NoBody {
			_ = out.SetReadDeadline(time.Now().Add(bodyTime))
		}
		if err := s.checkHost(r); err != nil {
			s.refuse(w, r, err)
			return
		}
		if err := origin.Check(r); err != nil {
			s.refuse(w, r, Errorf(connect.CodePermissionDenied, ReasonOrigin, "",
				"the request comes from another site's page: open the dashboard itself"))
			return
		}
		remote := s.clientAddr(r)
		r = r.WithContext(context.WithValue(r.Context(), remoteKey{}, remote))
		if s.cfg.Auth != nil { // without it onLoopback needs the address of the connection
			r.RemoteAddr = remote // r is a copy
		}
		if s.isPublic(r) {
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
		if !s.rates.take(who.id()) {
			h.Set("Retry-After", fmt.Sprint(int(1/s.cfg.Rate)+1))
			s.refuse(w, r, Errorf(connect.CodeResourceExhausted, ReasonRateLimited, "",
				"too many requests of %s: at most %v a second", who.Name, s.cfg.Rate))
			return
		}
		asked := r
		again := func(ctx context.Context) (Principal, error) { return s.recognise(asked.WithContext(ctx)) }
		r = r.WithContext(context.WithValue(WithPrincipal(r.Context(), who), againKey{}, again))
		if err := s.readBody(out, r, who); err != nil {
			s.refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// parseProxies reads addresses and prefixes of them.
func parseProxies(list []string) (proxies []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if addr, e := netip.ParseAddr(text); e == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("TrustedProxies has %q: want an address such as 10.1.2.3, or a prefix such as 10.0.0.0/8", text)
		}
		proxies = append(proxies, p.Masked())
	}
	return proxies, nil
}

// clientAddr returns the address of the client: that of the connection, or, behind trusted proxies,
// the last one in X-Forwarded-For that is not theirs. A client may have written what stands
// before it.
func (s *Server) clientAddr(r *http.Request) string {
	isProxy := func(text string) bool {
		addr, err := netip.ParseAddr(hostname(text))
		return err == nil && slices.ContainsFunc(s.proxies, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
	}
	remote := r.RemoteAddr
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		if _, err := netip.ParseAddr(hostname(hop)); err != nil || !isProxy(remote) {
			break
		}
		remote = hop
	}
	return remote
}

// againKey is the key of the function that recognises the caller of a request again.
type againKey struct{}

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
	// Without Hosts, a server that others reach takes every name: its callers need credentials,
	// which a browser does not send under a foreign name. On the loopback a caller may need none,
	// so the server takes the loopback's names alone.
	if client.IsLoopback(host) || len(s.cfg.Hosts) == 0 && !s.onLoopback(r) {
		return nil
	}
	return Errorf(connect.CodePermissionDenied, ReasonHost, "",
		"the Host header names %q, which is not this server: see Config.Hosts", clip(host, 128))
}

func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// onLoopback reports whether the connection begins and ends on this machine.
func (s *Server) onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && client.IsLoopback(hostname(local.String())) && client.IsLoopback(hostname(r.RemoteAddr))
}

// proxyHeaders are headers that proxies add.
var proxyHeaders = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}

// recognise returns the caller.
func (s *Server) recognise(r *http.Request) (Principal, error) {
	if s.cfg.Auth == nil {
		// A proxy on this machine forwards for callers on other machines.
		forwarded := slices.ContainsFunc(proxyHeaders, func(name string) bool { return r.Header.Get(name) != "" })
		if !s.onLoopback(r) || forwarded {
			return Principal{}, Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "",
				"this server has no authentication and serves only its own machine")
		}
		return Principal{Name: "loopback", Role: s.cfg.LoopbackRole, Method: "loopback"}, nil
	}
	r, who := s.withSession(r)
	if who != nil {
		return *who, nil
	}
	p, err := s.cfg.Auth.Authenticate(r)
	if err == nil && !p.most().atLeast(RoleViewer) {
		err = ErrBadCredentials
	}
	var ready *Error
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, ErrNoCredentials):
		return p, Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "",
			"no credentials: send Authorization: Bearer TOKEN, or a client certificate")
	case errors.Is(err, ErrExpired):
		err = Errorf(connect.CodeUnauthenticated, ReasonExpired, "",
			"the credentials have expired: ask for new ones")
	case errors.Is(err, ErrBadCredentials):
		err = Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "", "the credentials are not known here")
	case errors.As(err, &ready):
	case r.Context().Err() != nil: // the caller has gone while it waited for a check
		return p, r.Context().Err()
	default:
		s.refused.warn(s.log, "operator: cannot check credentials", err)
		return p, Errorf(connect.CodeUnavailable, ReasonUnavailable, "",
			"the credentials cannot be checked now: the server's log says why")
	}
	s.refused.warn(s.log, "operator: refused", err, "remote", r.RemoteAddr)
	return p, err
}

// refuse refuses a request: with a page when a browser asks for one, and otherwise in the
// request's own protocol.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if strings.HasPrefix(r.URL.Path, "/ui/") && strings.Contains(r.Header.Get("Accept"), "text/html") {
		err = wire(r.Context(), s.log, "", err)
		s.ui.Refuse(w, httpStatus(err), client.Message(err))
		return
	}
	s.writeRefusal(w, r, err)
}

// writeRefusal answers a refused request in the request's own protocol.
func (s *Server) writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	err = wire(r.Context(), s.log, "", err)
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="lifecycle"`)
	}
	if isRPC(r.URL.Path) {
		if errs := connect.NewErrorWriter(); errs.IsSupported(r) {
			_ = errs.Write(w, r, err) // fails when the caller has gone
			return
		}
	}
	writeStatus(w, httpStatus(err), err)
}

// httpStatus returns the HTTP status of an error that wire has made.
func httpStatus(err error) int {
	switch client.Reason(err) {
	case ReasonBodyTooLarge:
		return http.StatusRequestEntityTooLarge
	case ReasonCompressed:
		return http.StatusUnsupportedMediaType
	}
	return httpcode.Of(connect.CodeOf(err))
}

// isRPC reports whether a path belongs to an RPC, not to REST.
func isRPC(path string) bool {
	return strings.HasPrefix(path, "/lifecycle.operator.") || strings.HasPrefix(path, "/grpc.")
}
