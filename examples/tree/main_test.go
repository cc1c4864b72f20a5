package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
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

// log is what the program prints, and ends it when enough has happened.
type log struct {
	mu     sync.Mutex
	text   bytes.Buffer
	enough func(string) bool
	end    context.CancelFunc
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	if l.enough(l.text.String()) {
		l.end()
	}
	return len(b), nil
}

func TestTheTreeHeals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	healed := regexp.MustCompile(`(?s)the reader fails.*reader +Running -> Failed.*cache +Running -> Stopping.*reader +Starting -> Running.*kills the program.*program +Running -> Failed.*program +Starting -> Running`)
	out := &log{end: cancel, enough: healed.MatchString}
	if err := run(ctx, out, 0, 300*time.Millisecond); err != nil {
		t.Errorf("run: %v", err)
	}
	text := out.text.String()
	if !healed.MatchString(text) || !strings.Contains(text, "flowchart TD") || !strings.Contains(text, "program<br/>process<br/>Stopped") {
		t.Errorf("it printed\n%s", text)
	}
	if os.Getenv(worker.EnvSession) != "" {
		t.Error("the session is the child's alone")
	}
}
