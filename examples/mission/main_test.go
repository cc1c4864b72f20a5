package main

import (
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if url := os.Getenv("MISSION_WING"); url != "" { // the second process of the test
		if err := run(context.Background(), os.Stdout, url, 0); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

func TestEveryMissionEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out, "", 100); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		`(?m)^the second process was killed`, `(?m)^all 100 have ended: \d+ aborted \d+ completed \d+ failed$`,
		`-> planning   by framework`, `by component  wing-\d`, `by component  home-\d`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
