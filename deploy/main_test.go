package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the waits of a test.
const patience = time.Minute

// tool returns the path of a program in bin/. Without it the test is
// skipped: some take minutes to build, and CI has them.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("there is no bin/%s: make bin/%s builds it", name, name)
	}
	return path
}

// output runs a program and returns its output, or an error with its
// standard error.
func output(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// helm keeps caches and settings; do not use this machine's. A third of its time is the
	// collection of garbage, and it ends before it needs 100 MB.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "GOGC=off")
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := output(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually polls until the answer is yes.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	until(t, patience, what, ask)
}

// until polls until the answer is yes, at most so long.
func until(t *testing.T, patience time.Duration, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(max(50*time.Millisecond, patience/1000))
	defer tick.Stop()
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		<-tick.C
	}
}
