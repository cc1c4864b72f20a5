//go:build unix

package procpool

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// An idle worker may answer health checks for weeks. Here the test hands the answers
// to the pool.
func TestAnswersToHealthChecksAreNoFlood(t *testing.T) {
	p, err := New(Config{Name: "p", MinWorkers: 1, SocketDir: t.TempDir() + "/s", HealthInterval: Off, Command: func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "PROCPOOL_TEST_HELPER=serve")
		return cmd
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := p.Do(context.Background(), []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	w := p.workers[0]
	p.mu.Unlock()
	answer := func(asked time.Time) error {
		p.mu.Lock()
		w.asked = asked
		p.mu.Unlock()
		return w.take(&wire.Envelope{Type: wire.HealthOK})
	}
	for n := range maxIgnored + 2 {
		if err := answer(time.Now()); err != nil {
			t.Fatalf("answer %d: %v", n+1, err)
		}
	}
	for range maxIgnored {
		if err := answer(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if answer(time.Time{}) == nil {
		t.Errorf("the pool accepted %d answers that it did not ask for", maxIgnored+1)
	}
}
