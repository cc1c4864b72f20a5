//go:build unix

package procpool

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/stderr"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestLossThatACancelledQueryDidNotHearIsTold cancels a query after its worker has died and
// before the query has ended of that. The next query of its key learns of the loss.
func TestLossThatACancelledQueryDidNotHearIsTold(t *testing.T) {
	p, err := New(Config{Command: func() *exec.Cmd { return exec.Command("true") }})
	if err != nil {
		t.Fatal(err)
	}
	for _, cancelled := range []bool{true, false} {
		q, err := p.newQuery(context.Background(), json.RawMessage("1"), []Option{Key("bob")})
		if err != nil {
			t.Fatal(err)
		}
		queryModel.Begin(&q.machine, "q1", QueryPending, &p.events)
		if err := q.machine.To(QueryProcessing, nil); err != nil {
			t.Fatal(err)
		}
		w := &proc{p: p, process: worker.NewProcess("w", nil), stderr: &stderr.Tail{}}
		if cancelled {
			q.Cancel(nil)
		}
		p.mu.Lock()
		p.lost["bob"] = true
		p.diedWithLocked(w, q, errGone, true)
		p.mu.Unlock()
		if _, err := q.Result(); errors.Is(err, ErrSessionLost) == cancelled {
			t.Errorf("cancelled %v: it ended with %v", cancelled, err)
		}
		p.mu.Lock()
		if p.lost["bob"] != cancelled {
			t.Errorf("cancelled %v: the next query learns of the loss: %v", cancelled, p.lost["bob"])
		}
		p.mu.Unlock()
	}
}
