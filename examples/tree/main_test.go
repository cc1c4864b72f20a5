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
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// log collects what the program prints, and ends the program when enough has happened.
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	healed := regexp.MustCompile(`(?s)the reader fails.*reader +Running -> Failed.*cache +Running -> Stopping.*reader +Starting -> Running.*killing the program.*program +Running -> Failed.*program +Starting -> Running`)
	// It may have been killed once more when the end began.
	ended := regexp.MustCompile(`program<br/>process<br/>(Stopped|Failed)`)
	out := &log{end: cancel, enough: healed.MatchString}
	if err := run(ctx, out, 0, 300*time.Millisecond); err != nil {
		t.Errorf("run: %v", err)
	}
	text := out.text.String()
	if !healed.MatchString(text) || !strings.Contains(text, "flowchart TD") || !ended.MatchString(text) {
		t.Errorf("it printed\n%s", text)
	}
	if os.Getenv(worker.EnvSession) != "" {
		t.Error("only the child may have the session")
	}
}
