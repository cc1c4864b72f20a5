package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// logs reads the output of containers from the node's files. These are removed with their
// pod, so logs keeps them open.
type logs struct {
	c    *cluster
	quit chan struct{}
	all  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	pods  map[string]bool
	lines map[string][]string // by uid
	ended bool
}

func (c *cluster) followLogs(t *testing.T) *logs {
	l := &logs{c: c, quit: make(chan struct{}), pods: make(map[string]bool), lines: make(map[string][]string)}
	t.Cleanup(func() {
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		close(l.quit)
		l.all.Wait()
		if t.Failed() {
			t.Logf("the last lines of each pod:\n%s", l.tail(12))
		}
	})
	return l
}

// follow reads the logs of all containers of the pod, the restarted ones too.
func (l *logs) follow(name, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[uid] || l.ended {
		return
	}
	l.pods[uid] = true
	folder := fmt.Sprintf("/var/log/pods/%s_%s_%s/*", l.c.namespace, name, uid) // of each container
	l.all.Go(func() {
		files := make(map[string]*os.File)
		rest := make(map[string][]byte) // of a line
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for last := false; ; {
			found, _ := filepath.Glob(folder + "/*.log") // the pattern is well formed
			for _, path := range found {
				if files[path] == nil {
					f, err := os.Open(path)
					if err != nil {
						continue // removed meanwhile
					}
					defer f.Close()
					files[path] = f
				}
			}
			for path, f := range files {
				more, _ := io.ReadAll(f)
				rest[path] = l.take(uid, append(rest[path], more...))
			}
			if last {
				return
			}
			select {
			case <-tick.C:
			case <-l.quit:
				last = true
			}
		}
	})
}

// take keeps the complete lines of text and returns the rest.
func (l *logs) take(uid string, text []byte) (rest []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		line, after, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return text
		}
		// "2026-11-21T02:45:48.992213933Z stderr F {...}"
		if fields := strings.SplitN(string(line), " ", 4); len(fields) == 4 {
			l.lines[uid] = append(l.lines[uid], fields[3])
		}
		text = after
	}
}

// said returns the records of the pod's log with this message.
func (l *logs) said(uid, msg string) (records []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines[uid] {
		var record map[string]any
		if json.Unmarshal([]byte(line), &record) == nil && record["msg"] == msg {
			records = append(records, record)
		}
	}
	return records
}

// await returns the first record with this message, now or later.
func (l *logs) await(t *testing.T, uid, msg string) map[string]any {
	t.Helper()
	var records []map[string]any
	eventually(t, fmt.Sprintf("the log to say %q", msg), func() bool {
		records = l.said(uid, msg)
		return len(records) > 0
	})
	return records[0]
}

func (l *logs) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for uid, lines := range l.lines {
		fmt.Fprintf(&b, "  pod %s:\n", uid)
		for _, line := range lines[max(0, len(lines)-n):] {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// at returns when the record was written.
func at(t *testing.T, record map[string]any) time.Time {
	t.Helper()
	text, _ := record["time"].(string)
	when, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatalf("a record of the log has no time: %v", record)
	}
	return when
}
