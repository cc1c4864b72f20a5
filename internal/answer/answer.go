// Package answer writes the HTTP responses of the library's own endpoints: the
// health planes, /statusz and the operators' endpoints.
//
// Every response has a known length, forbids caching and content sniffing, and
// has no body for HEAD.
package answer

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Content types.
const (
	TypeJSON = "application/json"
	TypeText = "text/plain; charset=utf-8"
	TypeHTML = "text/html; charset=utf-8"
)

// Answer is a rendered response.
type Answer struct {
	status int
	ctype  string
	body   []byte
}

// New returns a response with a status, one of the content types, and a body.
func New(status int, contentType string, body []byte) *Answer {
	return &Answer{status: status, ctype: contentType, body: body}
}

// Line returns a response of one line of text. It adds the newline.
func Line(status int, format string, args ...any) *Answer {
	return New(status, TypeText, fmt.Appendf(nil, format+"\n", args...))
}

// Write sends the response. It ignores an error of the connection, because the client is gone.
func (a *Answer) Write(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.ctype)
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.status)
	if req.Method != http.MethodHead {
		_, _ = w.Write(a.body)
	}
}

// Allow reports whether the request has one of the methods. If not, it answers
// with 405 and names them.
func Allow(w http.ResponseWriter, req *http.Request, methods ...string) bool {
	if slices.Contains(methods, req.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	Line(http.StatusMethodNotAllowed, "method not allowed: use %s", strings.Join(methods, " or ")).Write(w, req)
	return false
}

// maxQuery bounds the query of a request, in bytes. The queries of a kubelet
// and of a person are far below it.
const maxQuery = 4096

// QueryTooLong returns a refusal with 400 for a request whose query is too long
// to be read, and nil for every other request.
func QueryTooLong(req *http.Request) *Answer {
	if n := len(req.URL.RawQuery); n > maxQuery {
		return Line(http.StatusBadRequest, "the query has %d bytes, at most %d are read", n, maxQuery)
	}
	return nil
}
