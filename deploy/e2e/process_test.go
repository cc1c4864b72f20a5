package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// process is the first process of a pod's container, seen from the node.
type process struct {
	container string
	pid       int
}

func (d *deployed) process(t *testing.T, p *pod) process {
	t.Helper()
	for line := range strings.Lines(d.ctr(t, "tasks", "ls")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == p.container {
			pid, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return process{p.container, pid}
		}
	}
	t.Fatalf("container %s of pod %s does not run", p.container, p.name)
	return process{}
}

// signal sends one only to the container: Kubernetes does not know of it.
func (d *deployed) signal(t *testing.T, p process, sig string) {
	t.Helper()
	d.ctr(t, "tasks", "kill", "--signal", sig, p.container)
}

// listens reports whether the process has a listener on the port. It has none
// once the process is gone.
func (p process) listens(port int) (bool, error) {
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", p.pid, table))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			// sl local_address rem_address st …: state 0A is LISTEN.
			if c := strings.Fields(lines.Text()); len(c) > 3 && c[3] == "0A" && strings.HasSuffix(c[1], fmt.Sprintf(":%04X", port)) {
				return true, nil
			}
		}
		if err := lines.Err(); err != nil {
			return false, nil // the process ended meanwhile
		}
	}
	return false, nil
}

// closed waits until the process has no listener on the port and returns when
// that was: at the returned time, or a moment before.
func (p process) closed(t *testing.T, port int) time.Time {
	t.Helper()
	if open, err := p.listens(port); err != nil || !open {
		t.Fatalf("process %d does not listen on %d to begin with (%v)", p.pid, port, err)
	}
	eventually(t, fmt.Sprintf("the listener on %d to close", port), func() bool {
		open, err := p.listens(port)
		if err != nil {
			t.Fatal(err)
		}
		return !open
	})
	return time.Now()
}
