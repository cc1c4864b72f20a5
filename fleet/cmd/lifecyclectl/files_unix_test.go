//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// An interrupt ends each command while it waits for a file, such as a pipe without a writer.
func TestInterruptDuringAReadOfAFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"whoami", // its configuration file is the pipe
		"--token-file PIPE whoami",
		"--server https://localhost:1 --ca-file PIPE whoami",
		"doctor --statusz PIPE",
		"vet PIPE",
		"workers dev PIPE --message x",
		"workers apply --file PIPE",
		"workers sign --file x --key PIPE",
		"workers bus --config PIPE",
		"workflows check mission --table PIPE",
		"patch mission m-1 --file PIPE",
		"redrive w 1 --data-file PIPE",
		"upgrade --admin-token-file PIPE",
	} {
		t.Run(line, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "none")
			if line == "whoami" {
				config = pipe
			}
			t.Setenv("LIFECYCLECTL_CONFIG", config)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stderr bytes.Buffer
			args := strings.Fields(strings.ReplaceAll(line, "PIPE", pipe))
			ended := make(chan int, 1)
			go func() { ended <- Run(ctx, args, strings.NewReader(""), new(bytes.Buffer), &stderr) }()
			var fd int
			brokertest.Await(t, "it reads", func() bool {
				var err error
				fd, err = syscall.Open(pipe, syscall.O_WRONLY|syscall.O_NONBLOCK, 0)
				return err == nil || len(ended) > 0
			})
			cancel()
			if code := <-ended; code != cli.ExitInterrupted {
				t.Errorf("status %d: %s", code, stderr.String())
			}
			_ = syscall.Close(fd) // the read ends
		})
	}
}

// A file without an end is refused.
// A flag that takes no standard input has "-" as the name of a file.
func TestFileNamedMinus(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := cli.ReadFile(t.Context(), "-", nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without standard input: %v", err)
	}
	if text, err := cli.ReadFile(t.Context(), "-", strings.NewReader("x")); err != nil || string(text) != "x" {
		t.Errorf("with it: %q, %v", text, err)
	}
}

func TestFileWithoutAnEnd(t *testing.T) {
	t.Setenv("LIFECYCLECTL_CONFIG", "/dev/zero")
	var stderr bytes.Buffer
	code := Run(t.Context(), []string{"whoami"}, strings.NewReader(""), new(bytes.Buffer), &stderr)
	if code != cli.ExitUsage || !strings.Contains(stderr.String(), "/dev/zero has more than 64 MiB") {
		t.Errorf("status %d: %s", code, stderr.String())
	}
}
