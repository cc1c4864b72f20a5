package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// play is a server with prepared streams, one for each
// request. A real server does not go silent or end a stream in the middle on
// demand. The watches of the scripts use a real one.
type play struct {
	parts []func(w io.Writer) // nil: the connection is refused
	at    []time.Duration     // when each was requested
	begun time.Time
}

// Do answers a request with the next part, and then with maxSilence.
func (p *play) Do(req *http.Request) (*http.Response, error) {
	p.at = append(p.at, time.Since(p.begun))
	part := p.parts[len(p.at)-1]
	if part == nil {
		return nil, errors.New("connection refused")
	}
	r, w := io.Pipe()
	context.AfterFunc(req.Context(), func() { _ = w.CloseWithError(req.Context().Err()) })
	go part(w)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/connect+proto"}}, Body: r}, nil
}

// envelope encodes a message in Connect's protocol; with end it is the last.
func envelope(end bool, data []byte) []byte {
	flags := byte(0)
	if end {
		flags = 2
	}
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
}

func sends(list ...*operatorv1.WatchResponse) func(io.Writer) {
	return func(w io.Writer) {
		for _, m := range list {
			data, _ := proto.Marshal(m)
			_, _ = w.Write(envelope(false, data))
		}
	}
}

func fails(code string) func(io.Writer) {
	return func(w io.Writer) {
		_, _ = w.Write(envelope(true, []byte(`{"error":{"code":"`+code+`"}}`)))
		hangUp(w)
	}
}

func hangUp(w io.Writer) {
	if c, ok := w.(io.Closer); ok {
		_ = c.Close()
	}
}

func put(id string, revision uint64) *operatorv1.WatchResponse {
	return &operatorv1.WatchResponse{Kind: operatorv1.WatchResponse_KIND_PUT, Entity: &operatorv1.Entity{Id: id, Revision: revision}}
}

var synced = &operatorv1.WatchResponse{Kind: operatorv1.WatchResponse_KIND_SYNCED}

// perform follows a play and returns its messages.
func perform(ctx context.Context, parts ...func(io.Writer)) (p *play, calls []string, err error) {
	p = &play{parts: parts, begun: time.Now()}
	c := operatorv1connect.NewWorkflowServiceClient(p, "http://127.0.0.1")
	err = Follow(ctx, Watcher{
		Lost: func(err error) {
			calls = append(calls, "lost")
			if errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled {
				calls = append(calls, "as cancelled: "+err.Error())
			}
		},
		Back: func() { calls = append(calls, "back") },
	}, func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchResponse], error) {
		return c.Watch(ctx, &operatorv1.WatchRequest{Type: "t"})
	}, func() { calls = append(calls, "begin") }, func(m *operatorv1.WatchResponse) error {
		calls = append(calls, strings.ToLower(strings.TrimPrefix(m.GetKind().String(), "KIND_"))+m.GetEntity().GetId())
		if m.GetEntity().GetId() == "full" {
			return errors.New("the disk is full")
		}
		return nil
	})
	return p, calls, err
}

func TestWatchResumesAfterServerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, calls, err := perform(t.Context(),
			sends(put("a", 1), synced), // and then maxSilence
			nil, nil, nil, nil, nil, nil, nil,
			func(w io.Writer) { _, _ = w.Write([]byte{0, 0, 0, 0, 9, 1}); hangUp(w) }, // truncated in a message
			fails("unavailable"),
			sends(put("b", 2), &operatorv1.WatchResponse{Kind: operatorv1.WatchResponse_KIND_HEARTBEAT}),
			func(io.Writer) {}, // silent from the beginning
			fails("permission_denied"),
		)
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("it ends with %v, want the refusal", err)
		}
		want := "begin puta synced lost begin begin begin begin begin begin begin begin begin begin back putb lost begin begin"
		if got := strings.Join(calls, " "); got != want {
			t.Errorf("it called\n%s, want\n%s", got, want)
		}
		for _, i := range []int{0, 10, 11} { // silent after a message, after a heartbeat, at once
			if gap := p.at[i+1] - p.at[i]; gap < maxSilence || gap > maxSilence+time.Second {
				t.Errorf("maxSilence of stream %d was believed after %v, want %v", i, gap, maxSilence)
			}
		}
		for i := 2; i <= 9; i++ {
			if gap := p.at[i] - p.at[i-1]; gap < again.Min/2 || gap > 2*again.Max {
				t.Errorf("the wait before try %d was %v", i, gap)
			}
		}
		if p.at[8]-p.at[7] < again.Max/2 {
			t.Errorf("the waits do not grow: %v", p.at)
		}
	})
}

func TestWatchEndsWhenThereIsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, _, err := perform(t.Context(), nil); err == nil || connect.IsWireError(err) {
			t.Errorf("a server that was never there: %v", err)
		}
		_, _, err := perform(t.Context(), func(io.Writer) {})
		told := (&Server{URL: "http://ops"}).Explain(t.Context(), err, OfNothing, nil)
		if want := "http://ops did not answer in time: it has sent nothing for 45s"; told.Error() != want || StatusOf(told) != ExitUnreachable {
			t.Errorf("a server that is silent from the beginning: %v, exit status %d, want %s", told, StatusOf(told), want)
		}
		if _, _, err := perform(t.Context(), fails("not_found")); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("a type that is not there: %v", err)
		}
		if _, calls, err := perform(t.Context(), sends(put("full", 1))); err == nil || err.Error() != "the disk is full" {
			t.Errorf("a row that cannot be written: %v, %v", calls, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := perform(ctx, sends(synced), nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil); err != nil {
			t.Errorf("interrupted while it waits: %v", err)
		}
	})
}

func TestMemoryTellsNothingTwice(t *testing.T) {
	var calls []string
	c := Changes[int]{
		Same: func(a, b int) bool { return a == b },
		Put:  func(n int) error { calls = append(calls, fmt.Sprint("put ", n)); return nil },
		Gone: func(key string, last int) error { calls = append(calls, fmt.Sprint("gone ", key, last)); return nil },
	}
	take := func(kind operatorv1.WatchResponse_Kind, key string, n int) {
		if err := c.Take(kind, key, n); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(want ...string) {
		t.Helper()
		if !slices.Equal(calls, want) {
			t.Errorf("it called %q, want %q", calls, want)
		}
		calls = nil
	}
	const put, deleted, synced = operatorv1.WatchResponse_KIND_PUT, operatorv1.WatchResponse_KIND_DELETED, operatorv1.WatchResponse_KIND_SYNCED
	c.Begin()
	take(put, "a", 1)
	take(put, "b", 10)
	take(put, "c", 20)
	take(synced, "", 0)
	wants("put 1", "put 10", "put 20")
	take(put, "a", 1)
	take(put, "a", 2)
	take(deleted, "c", 0)
	take(deleted, "c", 0)
	wants("put 2", "gone c20")
	c.Begin() // another stream: a is as it was, b is gone, d is new
	take(put, "a", 2)
	take(put, "d", 30)
	take(synced, "", 0)
	wants("put 30", "gone b10")
	c.Begin() // a stream that breaks before it was synced says nothing about the other keys
	c.Begin()
	take(put, "a", 2)
	take(put, "d", 30)
	take(synced, "", 0)
	wants()
}
