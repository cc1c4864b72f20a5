package host_test

import (
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// internalServer serves what a secret stands for, except below /v1/, where a tenant may ask.
func internalServer(t *testing.T, card string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, below := strings.CutPrefix(r.URL.Path, "/v1/")
		switch {
		case !below:
			fmt.Fprint(w, card)
		case path == "to":
			http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusTemporaryRedirect)
		case path == "endless":
			for line := []byte(strings.Repeat("x", 1<<16)); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		case path == "bomb":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 256 {
				_, _ = z.Write(make([]byte, 1<<20))
			}
			_ = z.Close()
		case path == "headers":
			w.Header().Set("A", strings.Repeat("x", 1<<20))
		case path == "silent":
			<-r.Context().Done()
		default:
			w.Header().Set("Echo", r.Header.Get("Authorization"))
			fmt.Fprintf(w, "%s %s", r.Header.Get("Authorization"), r.Header.Get("Cookie"))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// addresses returns forms of addresses that are not public. Most of them lead to the internal server.
func addresses(internal string) [][2]string {
	_, port, _ := strings.Cut(strings.TrimPrefix(internal, "http://"), ":")
	list := [][2]string{
		{"loopback", "127.0.0.1"}, {"another loopback", "127.8.9.10"}, {"a name of loopback", "localhost"},
		{"loopback in short", "127.1"}, {"loopback as a number", "2130706433"}, {"loopback in hexadecimal digits", "0x7f000001"},
		{"loopback in octal digits", "0177.0.0.1"}, {"no address", "0.0.0.0"}, {"no address of IPv6", "[::]"},
		{"loopback of IPv6", "[::1]"}, {"mapped loopback", "[::ffff:127.0.0.1]"}, {"compatible loopback", "[::7f00:1]"},
		{"translated loopback", "[::ffff:0:7f00:1]"}, {"loopback by NAT64", "[64:ff9b::7f00:1]"}, {"loopback by 6to4", "[2002:7f00:1::]"},
		{"link-local", "169.254.169.254"}, {"link-local of IPv6", "[fe80::1]"}, {"a private network of IPv6", "[fd00::1]"},
		{"a private network", "10.0.0.1"}, {"a carrier's network", "100.64.0.1"}, {"the wire server of a cloud", "168.63.129.16"},
		{"relays of 6to4", "192.88.99.1"}, {"benchmarks", "198.18.0.1"}, {"multicast", "224.0.0.1"},
		{"multicast of IPv6", "[ff02::1]"}, {"broadcast", "255.255.255.255"}, {"reserved", "240.0.0.1"},
	}
	own, _ := net.InterfaceAddrs()
	for _, a := range own {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			list = append(list, [2]string{"the machine's own", p.Addr().String()})
			break
		}
	}
	for i := range list {
		list[i][1] = "http://" + list[i][1] + ":" + port
	}
	return list
}

func patternsOf(list [][2]string) (patterns []string) {
	for _, a := range list {
		patterns = append(patterns, a[1]+"/*")
	}
	return patterns
}

// attacksOnTheNetwork ask for what is not allowed: by forms of addresses that a grant has by mistake,
// and by requests of a tenant with a grant.
func attacksOnTheNetwork(internal string) (list []against) {
	for _, a := range addresses(internal) {
		list = append(list, against{
			name: "address: " + a[0], mime: starlarkCode, brief: true, reason: "fetch: ",
			code: fmt.Sprintf("def handle(m): return fetch(%q).text", a[1]+"/"),
			spec: func(s *host.Spec) { s.HTTP.Allow = []string{a[1] + "/*"} },
		})
	}
	to := func(where string) string { return internal + "/v1/to?url=" + url.QueryEscape(where) }
	nested := internal + "/v1/x"
	for range 5 {
		nested = to(nested)
	}
	for _, row := range []struct{ name, url, more, reason string }{
		{"another path", internal + "/card", "", "not allowed"},
		{"dots", internal + "/v1/../card", "", "dots"},
		{"encoded dots", internal + "/v1/%2e%2e/card", "", "%2e"},
		{"dots that are encoded twice", internal + "/v1/%252e%252e/card", "", ""},
		{"dots and parameters", internal + "/v1/..;x/card", "", "dots"},
		{"an encoded slash", internal + "/v1/..%2fcard", "", "%2f"},
		{"a backslash", internal + `/v1/..\\card`, "", "not allowed"},
		{"a byte of zero", internal + "/v1/%00", "", "%00"},
		{"a user", strings.Replace(internal, "//", "//x:y@", 1) + "/v1/", "", "user name"},
		{"a host behind a user", internal + "@169.254.169.254/v1/", "", "user name"},
		{"a host with a dot", strings.Replace(internal, "127.0.0.1", "127.0.0.1.", 1) + "/v1/", "", "not allowed"},
		{"a host in other digits", strings.Replace(internal, "127.0.0.1", "①27.0.0.1", 1) + "/v1/", "", "not allowed"},
		{"a host in capitals", strings.Replace(internal, "http", "HTTP", 1) + "/card", "", "not allowed"},
		{"another port", "http://127.0.0.1:1/v1/", "", "not allowed"},
		{"another scheme", strings.Replace(internal, "http", "https", 1) + "/v1/", "", "not allowed"},
		{"a file", "file:///etc/passwd", "", "not allowed"},
		{"a relative URL", "//127.0.0.1/v1/", "", "not allowed"},
		{"a large URL", internal + "/v1/" + strings.Repeat("x", 9<<10), "", "8 KiB"},
		{"a line in a path", internal + `/v1/\r\nA: b`, "", "not valid"},
		{"a tunnel", internal + "/v1/", `, method="CONNECT"`, "method"},
		{"a method with a line", internal + "/v1/", `, method="GET / HTTP/1.1\r\nA: b"`, "method"},
		{"another host in a header", internal + "/v1/", `, headers={"host": "internal"}`, "header Host"},
		{"two lengths", internal + "/v1/", `, headers={"Content-Length": "1"}`, "header Content-Length"},
		{"chunks", internal + "/v1/", `, headers={"transfer-encoding": "chunked"}`, "header Transfer-Encoding"},
		{"another protocol", internal + "/v1/", `, headers={"Upgrade": "h2c"}`, "header Upgrade"},
		{"a proxy", internal + "/v1/", `, headers={"Proxy-Authorization": "x"}`, "header Proxy-"},
		{"a line in a header", internal + "/v1/", `, headers={"A": "x\r\nB: y"}`, "invalid header"},
		{"a line in a header's name", internal + "/v1/", `, headers={"A\r\nB": "x"}`, "invalid header"},
		{"large headers", internal + "/v1/", `, headers={"A": "x" * 100000}`, "32 KiB"},
		{"a large body", internal + "/v1/", `, method="POST", body="x" * (2 << 20)`, "more than"},
		{"the neighbour's secret", internal + "/v1/own/", `, headers={"Authorization": "${CARD}"}`, "http.secrets"},
		{"its secret in another header", internal + "/v1/own/", `, headers={"Cookie": "${TOKEN}"}`, "one header"},
		{"its secret elsewhere", internal + "/v1/x", `, headers={"Authorization": "${TOKEN}"}`, "some URLs"},
		{"its secret a million times", internal + "/v1/own/", `, headers={"Authorization": "${TOKEN}" * 1000000}`, ""},
		{"its secret sent back", internal + "/v1/own/", `, headers={"Authorization": "${TOKEN}"}`, ""},
		{"a redirect to another path", to(internal + "/card"), "", "not allowed"},
		{"a redirect to metadata", to("http://169.254.169.254/latest"), "", "address is not allowed"},
		{"a redirect to a file", to("file:///etc/passwd"), "", "not allowed"},
		{"redirects without end", nested, "", "more than 3 redirects"},
		{"an answer without end", internal + "/v1/endless", "", "more than"},
		{"an answer that is compressed", internal + "/v1/bomb", "", "more than"},
		{"an answer of headers", internal + "/v1/headers", "", "headers exceeded"},
		{"an answer that does not come", internal + "/v1/silent", "", "longer than"},
	} {
		list = append(list, against{
			name: "request: " + row.name, mime: starlarkCode, brief: true, reason: row.reason,
			code: fmt.Sprintf("def handle(m): return fetch(\"%s\"%s).text", row.url, row.more),
			spec: caller(internal),
		})
	}
	return append(list, against{
		name: "request: requests without end", mime: starlarkCode, brief: true, reason: "a message may send",
		code: fmt.Sprintf("def handle(m):\n    while True: fetch(%q)", internal+"/v1/"), spec: caller(internal),
	}, against{
		name: "request: none is allowed", mime: starlarkCode, brief: true, reason: "no http.allow",
		code: fmt.Sprintf("def handle(m): return fetch(%q).text", internal+"/v1/"),
	})
}

func caller(internal string) func(*host.Spec) {
	return func(s *host.Spec) {
		s.Tenant = "caller"
		s.HTTP = host.HTTP{Allow: []string{internal + "/v1/*", "http://169.254.169.254/*"}, Secrets: []string{"TOKEN"}}
	}
}
