package wasm

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/tetratelabs/wazero/api"
)

// exportFetch exports the functions for HTTP.
func exportFetch(export func(name string, params int, fn func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error))) {
	export("fetch", 8, func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		var parts [4][]byte
		for i := range parts {
			part, err := read(mem, args, 2*i)
			if err != nil {
				return 0, err
			}
			parts[i] = bytes.Clone(part)
		}
		header, err := parseHeaders(string(parts[2]))
		if err != nil {
			return 0, err
		}
		c.response, err = engine.Fetch(ctx, c.state, &engine.Request{Method: string(parts[0]), URL: string(parts[1]), Header: header, Body: parts[3]})
		if err != nil {
			c.response = &engine.Response{Body: []byte(err.Error())}
			return -1, nil //nolint:nilerr // the module reads it with fetch_body
		}
		return int32(c.response.Status), nil
	})
	export("fetch_body", 2, func(_ context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		if c.response == nil {
			return 0, errors.New("there is no response: call fetch first")
		}
		return fill(mem, append([]uint64{0, 0}, args[:2]...), c.response.Body)
	})
	export("fetch_header", 4, func(_ context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		name, err := read(mem, args, 0)
		if err != nil {
			return 0, err
		}
		if c.response == nil {
			return 0, errors.New("there is no response: call fetch first")
		}
		values := http.Header(c.response.Header).Values(string(name))
		if len(values) == 0 {
			return -1, nil
		}
		return fill(mem, args, []byte(values[0]))
	})
}
