package starlark

import (
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

// fetch is the function of that name: it sends a request and returns the response.
func fetch(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var url, method string
	var headers *starlark.Dict
	var body starlark.Value
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "url", &url, "method?", &method, "headers?", &headers, "body?", &body); err != nil {
		return nil, err
	}
	c, err := handling(t, b)
	if err != nil {
		return nil, err
	}
	r := &engine.Request{URL: url, Method: method}
	switch body := body.(type) {
	case nil, starlark.NoneType:
	case starlark.String:
		r.Body = []byte(body)
	case starlark.Bytes:
		r.Body = []byte(body)
	default:
		return nil, fmt.Errorf("fetch: body is a %s, want a string or bytes", body.Type())
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
	answer, err := engine.Fetch(c.ctx, c.state, r)
	if err != nil {
		return nil, err
	}
	got := starlark.NewDict(len(answer.Header))
	for name, values := range answer.Header {
		list := make([]starlark.Value, len(values))
		for i, v := range values {
			list[i] = starlark.String(v)
		}
		if err := got.SetKey(starlark.String(name), starlark.NewList(list)); err != nil {
			return nil, err
		}
	}
	return starlarkstruct.FromStringDict(starlarkstruct.Default, starlark.StringDict{
		"status": starlark.MakeInt(answer.Status), "url": starlark.String(answer.URL), "headers": got,
		"data": starlark.Bytes(answer.Body), "text": starlark.String(answer.Body),
	}), nil
}
