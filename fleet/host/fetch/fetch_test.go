package fetch

import (
	"compress/gzip"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server returns an https server on the loopback, with the answers of a hostile
// server.
func server(t *testing.T) (*httptest.Server, *http.Transport) {
	mux := http.NewServeMux()
	changes := 0
	mux.HandleFunc("/code", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("code")) })
	mux.HandleFunc("/changes", func(w http.ResponseWriter, _ *http.Request) {
		changes++
		_, _ = w.Write([]byte{byte('0' + changes)})
	})
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/announced", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "100000") })
	mux.HandleFunc("/bomb", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(make([]byte, 1<<20))
		_ = z.Close()
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/trickle", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusFound)
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	transport, ok := s.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("no transport")
	}
	return s, transport
}

func TestGet(t *testing.T) {
	s, transport := server(t)
	// The policy allows 127.0.0.1, the address of the test server, and no other
	// address.
	c, err := New(Policy{AllowHosts: []string{"*"}, AllowNets: []string{"127.0.0.1/32"}, MaxSize: 5000, Timeout: time.Minute}, transport)
	if err != nil {
		t.Fatal(err)
	}
	hasty, err := New(Policy{AllowHosts: []string{"*"}, AllowNets: []string{"127.0.0.1/32"}, Timeout: time.Second}, transport)
	if err != nil {
		t.Fatal(err)
	}
	strict, err := New(Policy{AllowHosts: []string{"*"}, Timeout: time.Minute}, transport)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := New(Policy{AllowHosts: []string{"code.example.com", "*.trusted.example"}, Timeout: time.Second}, transport)
	if err != nil {
		t.Fatal(err)
	}
	none, err := New(Policy{AllowNets: []string{"127.0.0.1/32"}, Timeout: time.Minute}, transport)
	if err != nil {
		t.Fatal(err)
	}
	to := func(url string) string { return s.URL + "/to?url=" + url }
	for _, x := range []struct {
		name   string
		c      *Client
		url    string
		digest string
		is     error
		text   string
	}{
		{"good", c, s.URL + "/code", "", nil, ""},
		{"redirected", c, to("/code"), "", nil, ""},
		{"digest", c, s.URL + "/code", "sha256:" + strings.ToUpper(Digest([]byte("code"))), nil, ""},
		{"other digest", c, s.URL + "/code", Digest([]byte("edoc")), ErrDigest, ""},
		{"missing", c, s.URL + "/nothing", "", nil, "404"},
		{"huge", c, s.URL + "/huge", "", ErrTooLarge, ""},
		{"announced", c, s.URL + "/announced", "", ErrTooLarge, ""},
		{"bomb", c, s.URL + "/bomb", "", ErrTooLarge, ""},
		{"slow", hasty, s.URL + "/slow", "", nil, "longer than 1s"},
		{"trickle", hasty, s.URL + "/trickle", "", nil, "longer than 1s"},
		{"http", c, strings.Replace(s.URL, "https", "http", 1) + "/code", "", ErrForbidden, ""},
		{"file", c, "file:///etc/passwd", "", ErrForbidden, ""},
		{"no host", c, "https:///code", "", ErrForbidden, ""},
		{"user", c, "https://a:secret@example.com/", "", ErrForbidden, "a user name"},
		{"loopback", strict, s.URL + "/code", "", ErrForbidden, "its address is not allowed"},
		{"localhost", strict, "https://localhost/", "", ErrForbidden, ""},
		{"IPv6 loopback", strict, "https://[::1]/", "", ErrForbidden, ""},
		{"mapped", strict, "https://[::ffff:127.0.0.1]/", "", ErrForbidden, ""},
		{"decimal", strict, "https://2130706433/", "", nil, "fetch code"},
		{"metadata", strict, "https://169.254.169.254/latest/meta-data", "", ErrForbidden, ""},
		{"redirect to loopback", c, to("https://127.0.0.2/"), "", ErrForbidden, "127.0.0.2"},
		{"redirect to link-local", c, to("https://169.254.169.254/"), "", ErrForbidden, "169.254.169.254"},
		{"redirect to http", c, to("http://127.0.0.1/"), "", ErrForbidden, "scheme"},
		{"redirects without end", c, to(s.URL + "/to?url=" + s.URL + "/to?url=" + s.URL + "/to?url=/to"), "", ErrForbidden, ""},
		{"no list", none, s.URL + "/code", "", ErrForbidden, "fetch.allow_hosts is empty"},
		{"not listed", listed, "https://example.com/", "", ErrForbidden, "not one of code.example.com"},
		{"not below", listed, "https://untrusted.example/", "", ErrForbidden, "not one of"},
	} {
		body, err := x.c.Get(t.Context(), x.url, x.digest)
		good := x.is == nil && x.text == ""
		switch {
		case good && (err != nil || string(body) != "code"):
			t.Errorf("%s: %q, %v", x.name, body, err)
		case !good && (err == nil || x.is != nil && !errors.Is(err, x.is) || !strings.Contains(err.Error(), x.text)):
			t.Errorf("%s: %v, want %v %q", x.name, err, x.is, x.text)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error contains the password: %v", x.name, err)
		}
	}
	// The digest detects a URL whose content changes.
	first, err := c.Get(t.Context(), s.URL+"/changes", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), s.URL+"/changes", Digest(first)); !errors.Is(err, ErrDigest) {
		t.Errorf("changed content: %v", err)
	}
}

func TestPolicyIsRefused(t *testing.T) {
	for want, p := range map[string]Policy{
		"allow_nets":  {AllowNets: []string{"10.0.0.1"}},
		"allow_hosts": {AllowHosts: []string{"https://example.com"}},
		"max_size":    {MaxSize: -1},
	} {
		if _, err := New(p, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true,
		"127.0.0.1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"0.0.0.0": false, "255.255.255.255": false, "224.0.0.1": false, "192.0.2.1": false, "::": false, "::1": false, "fe80::1": false,
		"fd00::1": false, "::ffff:10.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "ff02::1": false, "fec0::1": false, "3fff::1": false, "5f00::1": false, "100:0:0:1::1": false,
		"168.63.129.16": false, "192.88.99.1": false, "::ffff:0:a00:1": false,
	} {
		if got := Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// FuzzAllowed checks that no URL makes allowed panic, and that it allows https
// only.
func FuzzAllowed(f *testing.F) {
	for _, seed := range []string{"https://example.com/x", "http://[::1]:80/", "https://a@b", "//x", "https://EXAMPLE.com./", "%", "https://[fe80::1%25eth0]/"} {
		f.Add(seed)
	}
	c, err := New(Policy{AllowHosts: []string{"example.com"}, Timeout: time.Nanosecond}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		req, err := http.NewRequest(http.MethodGet, raw, http.NoBody)
		if err != nil {
			return
		}
		if c.allowed(req.URL) == nil && (req.URL.Scheme != "https" || !strings.EqualFold(strings.TrimSuffix(req.URL.Hostname(), "."), "example.com")) {
			t.Errorf("%q is allowed", raw)
		}
	})
}

// The machine's own public addresses are refused, and those of others are not.
func TestOwnAddressesAreRefused(t *testing.T) {
	real := interfaceAddrs
	defer func() { interfaceAddrs = real }()
	interfaceAddrs = func() ([]net.Addr, error) {
		return []net.Addr{
			&net.IPNet{IP: net.ParseIP("8.8.4.4"), Mask: net.CIDRMask(24, 32)},
			&net.IPNet{IP: net.ParseIP("2606:4700::1"), Mask: net.CIDRMask(64, 128)},
		}, nil
	}
	networks, err := ParseAddresses([]string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for address, allowed := range map[string]bool{
		"8.8.4.4:80": false, "[::ffff:8.8.4.4]:80": false, "[2606:4700::1]:80": false,
		"8.8.4.5:80": true, "[2606:4700::2]:80": true, "10.1.2.3:80": true,
	} {
		if err := networks.Control("tcp", address, nil); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
}
