package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// checked looks for leaked goroutines once the tests have run.
type checked struct{ *testing.M }

func (c checked) Run() (code int) {
	goleak.VerifyTestMain(c.M, goleak.Cleanup(func(status int) { code = status })) // testscript has to clean up before the exit
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){"lifecyclectl": main})
}

// TestScripts runs lifecyclectl as its users do: testdata/script/*.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// status N CMD... runs CMD and wants the exit status N.
			"status": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec(args[1], args[2:]...)
				got := 0
				var exit interface{ ExitCode() int }
				if errors.As(err, &exit) {
					got = exit.ExitCode()
				} else if err != nil {
					ts.Fatalf("%v", err)
				}
				if fmt.Sprint(got) != args[0] {
					ts.Fatalf("exit status %d, want %s", got, args[0])
				}
			},
		},
	})
}

type broken struct{}

func (broken) Read([]byte) (int, error)  { return 0, errors.New("the pipe broke") }
func (broken) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestBrokenPipes(t *testing.T) {
	for name, io := range map[string]struct {
		in   io.Reader
		out  io.Writer
		want string
	}{
		"stdin":  {broken{}, new(bytes.Buffer), "read -: the pipe broke"},
		"stdout": {strings.NewReader("a: b"), broken{}, "write the report: the disk is full"},
	} {
		var stderr bytes.Buffer
		code := Run(t.Context(), []string{"vet", "-"}, io.in, io.out, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), io.want) {
			t.Errorf("%s: exit status %d, %q", name, code, stderr.String())
		}
	}
}

func TestInterruptedBeforeItReads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	if code := Run(ctx, []string{"vet", "-"}, broken{}, new(bytes.Buffer), &stderr); code != exitUsage || !strings.Contains(stderr.String(), "canceled") {
		t.Errorf("exit status %d, %q", code, stderr.String())
	}
}
