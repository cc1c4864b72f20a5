package wasm

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

func fetch(ctx context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	header, err := parseHeaders(string(texts[2]))
	if err != nil {
		return 0, err
	}
	c.response, err = engine.Fetch(ctx, c.state, &engine.Request{
		Method: string(texts[0]),
		URL:    string(texts[1]),
		Header: header,
		Body:   bytes.Clone(texts[3]),
	})
	if err != nil {
		c.response = &engine.Response{Body: []byte(err.Error())}
		return -1, nil //nolint:nilerr // the module reads it with fetch_body
	}
	return int32(c.response.Status), nil
}

var errNoResponse = errors.New("there is no response: call fetch first")

func fetchBody(_ context.Context, c *call, _ [][]byte, out buffer) (int32, error) {
	if c.response == nil {
		return 0, errNoResponse
	}
	return out.fill(c.response.Body)
}

func fetchHeader(_ context.Context, c *call, texts [][]byte, out buffer) (int32, error) {
	if c.response == nil {
		return 0, errNoResponse
	}
	values := http.Header(c.response.Header).Values(string(texts[0]))
	if len(values) == 0 {
		return -1, nil
	}
	return out.fill([]byte(values[0]))
}
