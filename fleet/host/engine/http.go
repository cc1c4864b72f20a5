package engine

import (
	"context"
	"errors"
)

// Request is an HTTP request of a handler.
type Request struct {
	Method string              `json:"method,omitempty"` // GET when empty
	URL    string              `json:"url"`
	Header map[string][]string `json:"headers,omitempty"`
	Body   []byte              `json:"body,omitempty"`
}

// Response is the answer to a [Request]. Every status is a response, and no error.
type Response struct {
	Status int                 `json:"status"`
	URL    string              `json:"url"` // after redirects
	Header map[string][]string `json:"headers,omitempty"`
	Body   []byte              `json:"body,omitempty"`
}

// Fetcher is a [State] of a message whose handler may send HTTP requests. The host sends
// them, so the code needs no network.
type Fetcher interface {
	// Fetch sends a request and returns the whole response. The error says why there is
	// none: the request is not allowed, a limit was broken, or the server is away.
	Fetch(ctx context.Context, r *Request) (*Response, error)
}

// Fetch sends a request for the handler to which s belongs.
func Fetch(ctx context.Context, s State, r *Request) (*Response, error) {
	f, ok := s.(Fetcher)
	if !ok {
		return nil, errors.New("fetch: there is no HTTP here")
	}
	return f.Fetch(ctx, r)
}
