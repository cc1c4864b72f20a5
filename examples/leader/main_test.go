package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("LEADER_TEST_PROGRAM") != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// Outside a cluster the program serves, says that it cannot lead, and stops on SIGTERM.
func TestOutsideACluster(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-addr=127.0.0.1:0", "-health=127.0.0.1:0")
	cmd.Env = []string{"LEADER_TEST_PROGRAM=1", "PATH=" + os.Getenv("PATH")}
	out := new(strings.Builder)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "the lease cannot be acquired") || !strings.Contains(out.String(), `"running"`); {
		n, err := log.Read(page)
		if out.Write(page[:n]); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v:\n%s", err, out)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil { // skips the window, unless both count as one
		t.Fatal(err)
	}
	for n := 1; n > 0; {
		n, _ = log.Read(page)
		out.Write(page[:n])
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if n := strings.Count(out.String(), "not in a cluster"); n != 3 {
		t.Errorf("%d lines say why, want one for each feature:\n%s", n, out)
	}
}
