package run

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/prometheus/client_golang/prometheus"
)

// The proxy serves in front of the program and says goodbye in its place: it is a server of the
// App, and the program stops after it. The program may end at its stop signal on the spot, and
// no request is lost.

// counted counts the requests of the proxy.
type counted struct {
	answers    *prometheus.CounterVec // by status
	unanswered prometheus.Counter
}

// newCounted registers the metrics of the proxy.
func newCounted(reg *prometheus.Registry) counted {
	c := counted{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lifecycle_proxy_requests_total",
			Help: "Requests that the proxy of lifecycle-run has answered, by the status of the answer.",
		}, []string{"code"}),
		unanswered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lifecycle_proxy_unanswered_total",
			Help: "Requests that the program did not answer: the proxy answered with 502.",
		}),
	}
	reg.MustRegister(c.answers, c.unanswered)
	return c
}

func (c counted) answer(status int) { c.answers.WithLabelValues(strconv.Itoa(status)).Inc() }

// newProxy returns the server that serves in front of the program.
func newProxy(addr string, to *url.URL, log *slog.Logger, count counted) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	proxy := &httputil.ReverseProxy{
		Transport: newTransport(to),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", to.Host
			r.Out.Host, r.Out.URL.RawQuery = r.In.Host, r.In.URL.RawQuery // as the client has sent them
			forwarded(r)
		},
		ModifyResponse: func(resp *http.Response) error {
			count.answer(resp.StatusCode)
			return sayGoodbye(resp)
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil { // else the client has gone
				log.Warn("the program does not answer", "request", r.Method+" "+r.URL.Path, "error", err)
				count.answer(http.StatusBadGateway)
				count.unanswered.Inc()
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	return &http.Server{Addr: addr, Handler: proxy, Protocols: protocols}
}

// forwarded says for whom the request is. The proxy is a part of the pod: what an ingress has
// said stays, and the client's address is added.
func forwarded(r *httputil.ProxyRequest) {
	const hops, host, proto = "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"
	r.Out.Header[hops] = r.In.Header[hops]
	r.SetXForwarded()
	for _, name := range []string{host, proto} {
		if said := r.In.Header[name]; len(said) > 0 {
			r.Out.Header[name] = said
		}
	}
}

// transports send a request to the program.
type transports struct{ kept, single http.RoundTripper }

// newTransport returns the way to the program. A program may close an idle connection in the
// moment in which a request is sent on it. net/http then sends the request again, unless that
// is unsafe. So a request that is unsafe to send twice has a connection of its own.
func newTransport(to *url.URL) http.RoundTripper {
	dialer := new(net.Dialer)
	newOne := func(single bool) *http.Transport {
		return &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", to.Host)
			},
			DisableCompression:  true,
			DisableKeepAlives:   single,
			MaxIdleConnsPerHost: 256,
		}
	}
	if to.Scheme == "h2c" {
		t := newOne(false)
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
		return t
	}
	return transports{newOne(false), newOne(true)}
}

// RoundTrip sends the request.
func (t transports) RoundTrip(r *http.Request) (*http.Response, error) {
	isSafe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if isSafe && (r.Body == nil || r.Body == http.NoBody) && r.Header.Get("Upgrade") == "" {
		return t.kept.RoundTrip(r)
	}
	return t.single.RoundTrip(r)
}

// sayGoodbye makes event streams and websockets end as those of an App do.
func sayGoodbye(resp *http.Response) error {
	ctx := resp.Request.Context()
	switch kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); {
	case resp.StatusCode == http.StatusSwitchingProtocols && strings.EqualFold(resp.Header.Get("Upgrade"), "websocket"):
		both, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			return nil
		}
		resp.Body = socket{newFarewell(both, new(frames), goingAway, lifecycle.Draining(ctx)), both}
	case resp.Request.Method == http.MethodGet && strings.EqualFold(strings.TrimSpace(kind), "text/event-stream"):
		resp.Body = newFarewell(resp.Body, new(events), nil, lifecycle.Draining(ctx))
	}
	return nil
}

// goingAway is a Close frame of a websocket with the status 1001 (RFC 6455, section 7.4.1).
var goingAway = []byte{0x88, 2, 1001 >> 8, 1001 & 0xff}

// socket is the program's side of a websocket.
type socket struct {
	*farewell
	io.Writer
}

// boundaries finds where a stream may end.
type boundaries interface {
	// end takes the next part of the stream. It returns behind which of its bytes the stream
	// may end first, and whether it may behind the last; first is -1 for none.
	end(p []byte) (first int, last bool)
}

// events finds the boundaries of an event stream: each event ends with an empty line. A client drops an event
// that does not.
type events struct {
	inLine  bool // the last byte was not the end of a line
	carry   bool // the last byte was a carriage return, to which a newline may belong
	isPair  bool // lines end with both
	isBegun bool // bytes have come since the last end of an event
}

func (e *events) end(p []byte) (first int, last bool) {
	first = -1
	for i, b := range p {
		isSecondHalf := b == '\n' && e.carry
		e.carry = b == '\r'
		switch {
		case b != '\n' && b != '\r':
			e.inLine, e.isBegun = true, true
			continue
		case e.carry && e.isPair: // its newline ends the line
			continue
		case isSecondHalf && !e.isPair: // of a line that has ended
			e.isPair = true
			continue
		case e.inLine:
			e.inLine = false
			continue
		}
		e.isBegun = false
		if first < 0 {
			first = i + 1
		}
	}
	return first, !e.isBegun
}

// frames finds the boundaries of a websocket's frames, from the server's side (RFC 6455, section 5.2).
type frames struct {
	header []byte
	rest   uint64 // of the payload
}

func (f *frames) end(p []byte) (first int, last bool) {
	first = -1
	for i := 0; i < len(p); {
		if f.rest > 0 {
			n := min(f.rest, uint64(len(p)-i))
			f.rest -= n
			i += int(n) //nolint:gosec // n is at most the length of p
		} else {
			f.header = append(f.header, p[i])
			i++
			if !f.headerIsWhole() {
				continue
			}
			f.rest, f.header = f.payload(), f.header[:0]
		}
		if f.rest == 0 && first < 0 {
			first = i
		}
	}
	return first, f.rest == 0 && len(f.header) == 0
}

// headerIsWhole reports whether the header has its length, and the mask that a server's frame
// should not have.
func (f *frames) headerIsWhole() bool {
	if len(f.header) < 2 {
		return false
	}
	need := 2
	switch f.header[1] & 0x7f {
	case 126:
		need += 2
	case 127:
		need += 8
	}
	if f.header[1]&0x80 != 0 {
		need += 4
	}
	return len(f.header) == need
}

func (f *frames) payload() uint64 {
	n := uint64(f.header[1] & 0x7f)
	size := 0
	switch n {
	case 126:
		size = 2
	case 127:
		size = 8
	}
	if size > 0 {
		n = 0
	}
	for _, b := range f.header[2 : 2+size] {
		n = n<<8 | uint64(b)
	}
	return n
}
