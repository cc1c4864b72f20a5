package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// observed is a collection that [observe] reads and follows.
type observed[T any] struct {
	object object
	query  url.Values // which of its objects
	// read reads the collection, and returns the version from which a watch goes on; ""
	// for a watch that begins with all objects as they are.
	read    func(context.Context) (version string, err error)
	take    func(kind string, item T) // called for each change
	trouble func(error)               // called for each error
}

// listing is the answer to a list.
type listing[T any] struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

func list[T any](ctx context.Context, c *Client, o object, query url.Values) (all listing[T], err error) {
	err = c.do(ctx, http.MethodGet, "list", o, query, nil, &all)
	return all, err
}

// observe reads a collection and follows its changes until ctx ends. When the watch ends
// it begins anew, unless the error will stay the same.
func observe[T any](ctx context.Context, c *Client, o observed[T]) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		version, err := o.read(ctx)
		if err == nil {
			err = watch(ctx, c, o, version)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && status(err) != http.StatusGone { // which says to read again
			o.trouble(err)
			if c.lasting(err) {
				return
			}
		}
		// A little more, so that the pods of a rollout do not ask all at once.
		select {
		case <-time.After(pause + rand.N(pause/4)):
		case <-ctx.Done():
			return
		}
	}
}

// lasting reports whether another attempt would meet the same error.
func (c *Client) lasting(err error) bool {
	switch status(err) {
	case http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound, http.StatusBadRequest:
		return true
	}
	return c.none != nil
}

// watchLasts is when the API server ends a watch.
const watchLasts = 5 * time.Minute

// watch passes on the changes of a collection since version, until ctx ends, the API
// server ends the watch, or an error.
func watch[T any](ctx context.Context, c *Client, o observed[T], version string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, watchLasts+c.cfg.Timeout, errors.New("the watch did not end"))
	defer cancel()
	query := url.Values{
		"watch":           {"1"},
		"resourceVersion": {version},
		"timeoutSeconds":  {strconv.Itoa(int(watchLasts / time.Second))},
	}
	for key, values := range o.query {
		query[key] = values
	}
	begun, late := context.WithCancelCause(ctx)
	defer late(nil)
	patience := time.AfterFunc(c.cfg.Timeout, func() { late(fmt.Errorf("no answer in %v", c.cfg.Timeout)) })
	resp, err := c.send(begun, http.MethodGet, "watch", o.object, query, nil)
	patience.Stop()
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	for events := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := events.Decode(&event); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("kube: watch %s: %w", o.object, because(begun, err))
		}
		if event.Type == "ERROR" {
			var s struct {
				Code            int
				Reason, Message string
			}
			_ = json.Unmarshal(event.Object, &s) // without a code it is an error as well
			return newError("watch", o.object, s.Code, s.Reason, s.Message)
		}
		var item T
		if err := json.Unmarshal(event.Object, &item); err != nil {
			return fmt.Errorf("kube: watch %s: an event is not what the API describes: %w", o.object, err)
		}
		o.take(event.Type, item)
	}
}
