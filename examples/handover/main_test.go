package main

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if _, ok, _ := worker.HandoverFromEnv(); ok {
		main() // this is the child process
	}
	goleak.VerifyTestMain(m)
}

func TestTheWorkIsTakenUpAgain(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out); err != nil {
		t.Errorf("run: %v", err)
	}
	want := `instance 1: there is no earlier instance
  item 1
  item 2
  item 3
  item 4
instance 2: the one before ended Failed with exit code 4
  item 5
  item 6
  item 7
instance 3: the one before ended Failed with exit code 7
  item 8
  item 9
  item 10
`
	if out.String() != want {
		t.Errorf("it printed\n%s", out.String())
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
