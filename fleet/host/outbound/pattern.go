package outbound

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Pattern is a set of URLs: a scheme, a host, a port and a path.
//
//	https://api.example.com/v1/*      every path that begins with /v1/
//	https://api.example.com/v1/items  this path
//	https://*.example.com/*           every host below example.com, every path
//	http://billing:8080/*             another scheme and port
//
// A query is not part of a pattern: a URL may have any.
type Pattern struct {
	scheme, host, port string
	path               string
	prefix             bool // path is the beginning of a path
	below              bool // host is the end of a host, with its dot
}

// Parse reads a pattern. The error says what a pattern looks like.
func Parse(text string) (Pattern, error) {
	bad := func(why string) (Pattern, error) {
		return Pattern{}, fmt.Errorf("%.200q is not a pattern of URLs: %s: want https://api.example.com/v1/*", text, why)
	}
	if len(text) > 1000 {
		return bad("it is longer than 1000 bytes")
	}
	scheme, rest, ok := strings.Cut(text, "://")
	p := Pattern{scheme: scheme}
	if !ok || scheme != "https" && scheme != "http" {
		return bad("the scheme is not https or http")
	}
	host, path, ok := strings.Cut(rest, "/")
	if !ok {
		return bad("it has no path")
	}
	if p.path = "/" + path; strings.HasSuffix(p.path, "*") {
		p.path, p.prefix = p.path[:len(p.path)-1], true
	}
	if rest, is := strings.CutPrefix(host, "*."); is {
		host, p.below = rest, true
	}
	if strings.Contains(host+p.path, "*") {
		return bad("a * stands for the first part of a host or the end of a path")
	}
	u, err := url.Parse(p.scheme + "://" + host + p.path)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.ContainsAny(text, "?#") {
		return bad("it is not a URL without a user, a query and a fragment")
	}
	if err := plain(u); err != nil {
		return bad(err.Error())
	}
	if p.path = u.Path; p.path == "" {
		p.path = "/"
	}
	p.host, p.port = strings.ToLower(u.Hostname()), portOf(u)
	if p.below {
		p.host = "." + p.host
	}
	return p, nil
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

// plain refuses URLs that a server may read in another way than this package.
func plain(u *url.URL) error {
	for _, r := range u.Host {
		if r <= ' ' || r >= 0x7f || r == '\\' || r == '%' {
			return errors.New("its host has characters beside ASCII letters, digits, dots and hyphens")
		}
	}
	if strings.HasSuffix(u.Hostname(), ".") {
		return errors.New("its host ends with a dot")
	}
	escaped := strings.ToLower(u.EscapedPath())
	for _, sign := range []string{"%2e", "%2f", "%5c", "%00", "\\"} {
		if strings.Contains(escaped, sign) {
			return fmt.Errorf("its path has %s", sign)
		}
	}
	for segment := range strings.SplitSeq(u.Path, "/") {
		// A server may cut a segment at a semicolon (RFC 3986, 3.3), and then read the dots.
		name, _, _ := strings.Cut(segment, ";")
		if name == "." || name == ".." {
			return errors.New("its path has a segment of dots")
		}
	}
	return nil
}

// Matches reports whether a URL belongs to the pattern.
func (p Pattern) Matches(u *url.URL) bool {
	path := u.Path
	path = cmp.Or(path, "/")
	sameServer := u.Scheme == p.scheme && portOf(u) == p.port && p.hasHost(strings.ToLower(u.Hostname()))
	return sameServer && plain(u) == nil && p.hasPath(path, false)
}

func (p Pattern) hasHost(host string) bool {
	if p.below {
		return strings.HasSuffix(host, p.host) && len(host) > len(p.host)
	}
	return host == p.host
}

func (p Pattern) hasPath(path string, prefix bool) bool {
	if p.prefix {
		return strings.HasPrefix(path, p.path)
	}
	return path == p.path && !prefix
}

// Covers reports whether every URL of other belongs to p too.
func (p Pattern) Covers(other Pattern) bool {
	if p.scheme != other.scheme || p.port != other.port || !p.hasPath(other.path, other.prefix) {
		return false
	}
	if other.below {
		return p.below && strings.HasSuffix(other.host, p.host)
	}
	return p.hasHost(other.host)
}
