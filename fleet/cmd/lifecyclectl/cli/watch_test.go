package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
)

// perform watches a server that gives these answers, one to each look: a text, or an error. A
// nil error is no answer at all. It returns what is shown, what is said on stderr, and when each
// look began.
func perform(ctx context.Context, answers ...any) (shown []string, said string, at []time.Duration, err error) {
	var stderr bytes.Buffer
	cmd := new(cobra.Command)
	cmd.SetContext(ctx)
	cmd.SetOut(new(bytes.Buffer))
	cmd.SetErr(&stderr)
	begun := time.Now()
	err = Watch(&Call{Command: cmd, Server: &Server{URL: "http://ops"}}, func(ctx context.Context) (string, error) {
		answer := answers[len(at)]
		at = append(at, time.Since(begun))
		switch answer := answer.(type) {
		case string:
			return answer, nil
		case error:
			return "", answer
		}
		<-ctx.Done()
		return "", ctx.Err()
	}, func(answer string) error {
		shown = append(shown, answer)
		if answer == "full" {
			return errors.New("the disk is full")
		}
		return nil
	})
	return shown, stderr.String(), at, err
}

// refusal is an error with which a server answers.
func refusal(code connect.Code) error { return connect.NewWireError(code, errors.New(code.String())) }

func TestWatchResumesAfterServerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		shown, said, at, err := perform(t.Context(),
			"a", "b", away, away, refusal(connect.CodeUnavailable), "c", nil, "d", refusal(connect.CodePermissionDenied))
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("it ends with %v, want the refusal", err)
		}
		if want := []string{"a", "b", "c", "d"}; !slices.Equal(shown, want) {
			t.Errorf("it shows %q, want %q", shown, want)
		}
		if strings.Count(said, "lost http://ops") != 2 || strings.Count(said, "http://ops is back") != 2 {
			t.Errorf("it says\n%s", said)
		}
		for i := 1; i < len(at); i++ {
			want := lookEvery
			if i == 7 { // the server was silent
				want += lookIn
			}
			if gap := at[i] - at[i-1]; gap != want {
				t.Errorf("look %d came %v after the one before, want %v", i, gap, want)
			}
		}
	})
}

func TestWatchEndsWhenThereIsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, _, _, err := perform(t.Context(), errors.New("connection refused")); err == nil {
			t.Error("a server that was never there is no error")
		}
		if _, _, at, err := perform(t.Context(), nil); !errors.Is(err, context.DeadlineExceeded) || len(at) != 1 {
			t.Errorf("a server that is silent from the beginning: %v", err)
		}
		if _, _, _, err := perform(t.Context(), refusal(connect.CodeNotFound)); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("a type that is not there: %v", err)
		}
		if _, _, _, err := perform(t.Context(), "full"); err == nil || err.Error() != "the disk is full" {
			t.Errorf("a row that cannot be written: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if shown, _, _, err := perform(ctx, "a"); err != nil || len(shown) != 1 {
			t.Errorf("interrupted while it waits: %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, _, err := perform(ctx, nil); err != nil {
			t.Errorf("interrupted while it looks: %v", err)
		}
	})
}

func TestMemoryTellsNothingTwice(t *testing.T) {
	type item struct {
		key string
		n   int
	}
	var calls []string
	c := Changes[item]{
		Key:  func(i item) string { return i.key },
		Same: func(a, b item) bool { return a.n == b.n },
		Put:  func(i item) error { calls = append(calls, fmt.Sprint("put ", i.key, i.n)); return nil },
		Gone: func(key string, last item) error { calls = append(calls, fmt.Sprint("gone ", key, last.n)); return nil },
	}
	look := func(items []item, want ...string) {
		t.Helper()
		if err := c.Take(items); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(calls, want) {
			t.Errorf("it called %q, want %q", calls, want)
		}
		calls = nil
	}
	look([]item{{"a", 1}, {"b", 10}, {"c", 20}}, "put a1", "put b10", "put c20")
	look([]item{{"a", 1}, {"b", 10}, {"c", 20}})
	look([]item{{"a", 2}, {"d", 30}}, "put a2", "put d30", "gone b10", "gone c20")
	look(nil, "gone a2", "gone d30")
}
