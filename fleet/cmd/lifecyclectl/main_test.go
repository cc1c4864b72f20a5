package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// checked runs the tests and looks for leaked goroutines. testscript must
// clean up before the process ends.
type checked func() (code int)

func (c checked) Run() int { return c() }

func TestMain(m *testing.M) {
	faultMain()
	host.EngineMain(starlark.New())
	testscript.Main(checked(func() (code int) {
		os.Setenv("LIFECYCLECTL_CONFIG", "testdata/no-such-file") // not the one of the user who runs the tests
		goleak.VerifyTestMain(m, append(brokertest.ServerLeaks(goleak.IgnoreTopFunction), goleak.Cleanup(func(status int) { code = status }))...)
		return code
	}), map[string]func(){"lifecyclectl": main})
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
		if code != cli.ExitUsage || !strings.Contains(stderr.String(), io.want) {
			t.Errorf("%s: exit status %d, %q", name, code, stderr.String())
		}
	}
}

func TestInterruptedBeforeItReads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	if code := Run(ctx, []string{"vet", "-"}, broken{}, new(bytes.Buffer), &stderr); code != cli.ExitInterrupted || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit status %d, %q", code, stderr.String())
	}
}
