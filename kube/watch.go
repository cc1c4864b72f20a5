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

const (
	pageSize   = 100
	maxPages   = 100
	watchLasts = 5 * time.Minute // the API server ends a watch after that, and the client begins another
)

// list returns the objects of a collection, page by page, and the version from which a
// watch goes on.
func list[T any](ctx context.Context, c *Client, o object, query url.Values) (items []T, version string, err error) {
	query.Set("limit", strconv.Itoa(pageSize))
	defer query.Del("limit")
	defer query.Del("continue")
	for range maxPages {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := c.do(ctx, http.MethodGet, "list", o, query, nil, &page); err != nil {
			return nil, "", err
		}
		items = append(items, page.Items...)
		if page.Metadata.Continue == "" {
			return items, page.Metadata.ResourceVersion, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
	return nil, "", fmt.Errorf("kube: list %s: more than %d objects", o, maxPages*pageSize)
}

// watch calls take for each change of a collection since version, until ctx ends, the
// API server ends the watch, or an error. It returns the version to go on from.
func watch[T any](ctx context.Context, c *Client, o object, query url.Values, version string, take func(kind string, item T)) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, watchLasts+c.cfg.Timeout, errors.New("the watch did not end"))
	defer cancel()
	query.Set("watch", "1")
	query.Set("resourceVersion", version)
	query.Set("allowWatchBookmarks", "true")
	query.Set("timeoutSeconds", strconv.Itoa(int(watchLasts/time.Second)))
	begun, late := context.WithCancelCause(ctx)
	defer late(nil)
	patience := time.AfterFunc(c.cfg.Timeout, func() { late(fmt.Errorf("no answer in %v", c.cfg.Timeout)) })
	resp, err := c.send(begun, http.MethodGet, "watch", o, query, nil)
	patience.Stop()
	if err != nil {
		return version, err
	}
	defer func() { _ = resp.Body.Close() }()
	in := &io.LimitedReader{R: resp.Body}
	for events := json.NewDecoder(in); ; {
		in.N = maxAnswer // for each event
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := events.Decode(&event); {
		case err != nil && in.N == 0:
			return version, fmt.Errorf("kube: watch %s: an event has more than %d bytes", o, maxAnswer)
		case errors.Is(err, io.EOF):
			return version, nil
		case err != nil:
			return version, fmt.Errorf("kube: watch %s: %w", o, because(begun, err))
		}
		if event.Type == "ERROR" {
			var s struct {
				Code            int
				Reason, Message string
			}
			_ = json.Unmarshal(event.Object, &s) // without a code it is an error as well
			return version, newError("watch", o, s.Code, s.Reason, s.Message)
		}
		var meta struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		var item T
		if err := errors.Join(json.Unmarshal(event.Object, &meta), json.Unmarshal(event.Object, &item)); err != nil {
			return version, fmt.Errorf("kube: watch %s: an event is not what the API describes: %w", o, err)
		}
		version = meta.Metadata.ResourceVersion
		if event.Type != "BOOKMARK" {
			take(event.Type, item)
		}
	}
}

// follow watches a collection until ctx ends, and resumes the watch where it ended. It
// returns an error when that cannot succeed: the version is too old (410), so that the
// caller has to read again, or the permission is missing. trouble is called for each
// other error, before a pause.
func follow[T any](ctx context.Context, c *Client, o object, query url.Values, version string, take func(kind string, item T), trouble func(error)) error {
	pause := time.Duration(0)
	for {
		began := time.Now()
		var err error
		version, err = watch(ctx, c, o, query, version, take)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller has ended it
		case err != nil && c.lasting(err):
			return err
		case err == nil && time.Since(began) > time.Second:
			pause = 0 // the API server ends a watch from time to time
		default:
			if err != nil {
				trouble(err)
			}
			pause = min(max(2*pause, 100*time.Millisecond), 5*time.Second)
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// lasting reports whether another attempt would meet the same error.
func (c *Client) lasting(err error) bool {
	switch status(err) {
	case http.StatusGone, http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound, http.StatusBadRequest:
		return true
	}
	return c.none != nil
}

// sleep waits for d and a little more, so that the pods of a rollout do not ask all at
// once. It returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d + rand.N(d/4+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
