package starlark

import (
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"go.starlark.net/starlark"
)

// fetch sends a request and returns the response.
func fetch(c *call, args arguments) (starlark.Value, error) {
	var r engine.Request
	var headers *starlark.Dict
	var body starlark.Value
	err := args.unpack("url", &r.URL, "method?", &r.Method, "headers?", &headers, "body?", &body)
	if err != nil {
		return nil, err
	}
	if r.Body, err = args.bytesOf("body", body); err != nil {
		return nil, err
	}
	if headers != nil {
		r.Header = make(map[string][]string, headers.Len())
		for _, item := range headers.Items() {
			name, isName := starlark.AsString(item[0])
			v, isText := starlark.AsString(item[1])
			if !isName || !isText {
				return nil, fmt.Errorf("fetch: headers has a %s and a %s, want strings", item[0].Type(), item[1].Type())
			}
			r.Header[name] = []string{v}
		}
	}
	answer, err := engine.Fetch(c.ctx, c.state, &r)
	if err != nil {
		return nil, err
	}
	return newStruct(starlark.StringDict{
		"status":  starlark.MakeInt(answer.Status),
		"url":     starlark.String(answer.URL),
		"headers": headersOf(answer.Header),
		"data":    starlark.Bytes(answer.Body),
		"text":    starlark.String(answer.Body),
	}), nil
}
