package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	host.EngineMain(languages()...)
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

func TestTheStoryIsTold(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out); err != nil {
		t.Errorf("run: %v", err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("the secret is shown")
	}
	for _, want := range []string{
		"of them in 'three'", "'no more shouting'", "as if nothing had been", "dead letter 1: 'catch 22' after 2 attempts", "2 dead letters redriven",
		"'fahrenheit 451'", "generation 3: ", "rollback, by ann", "count is as its spec says: 0 differences", "for acme with the token [secret TOKEN]", "a test would write total = ", "count generation 2: 0 handled, 4 failures, 2 dead letters",
	} {
		// Python and JavaScript quote in their own ways.
		if !strings.Contains(strings.ReplaceAll(out.String(), "'", `"`), strings.ReplaceAll(want, "'", `"`)) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}
