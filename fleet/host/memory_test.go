package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// What messages write to state, and what they publish, is in the budget until the server has it, and
// messages that wait have at most a part of it: handlers wait in between.
func TestStagedMemoryIsBounded(t *testing.T) {
	r := newRig(t)
	const budget, message = 96 << 20, 8 << 20
	r.tune = func(c *host.Config) { c.MemoryBudget, c.MaxMessage = budget, 1<<20 }
	value := make([]byte, 1000<<10)
	var h *host.Host
	most := int64(0)
	req := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		most = max(most, h.Waits().UsedMemory)
		for i := range 8 {
			if err := s.Put(ctx, fmt.Sprintf("%s-%d", m.Data[:2], i), value); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	h = r.start("a")
	create(t, h, req)
	const n = 16 // more than the budget holds
	for i := range n {
		r.publish("work.w", fmt.Sprintf("%02d", i)+strings.Repeat("x", 900<<10))
	}
	for i := range n {
		r.eventually(fmt.Sprintf("%d are handled", i+1), func() bool {
			rows := h.Tallies()
			return len(rows) == 1 && rows[0].Succeeded > uint64(i)
		})
	}
	t.Logf("at most %d MiB were taken", most>>20)
	if most > budget+message {
		t.Errorf("%d MiB were taken of %d", most>>20, budget>>20)
	}
	for used := h.Waits().UsedMemory; used > 0; used = h.Waits().UsedMemory {
		r.eventually(fmt.Sprintf("some of %d bytes are given back", used), func() bool { return h.Waits().UsedMemory < used })
	}
}

// A host whose budget is too small for two messages is refused, and the error says what to do.
func TestMemoryBudgetIsChecked(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MemoryBudget = 1 << 20
		if _, err := host.New(r.js, *c); err == nil || !strings.Contains(err.Error(), "memory_budget") {
			t.Errorf("a budget of 1 MiB: %v", err)
		}
		c.MemoryBudget = 0
	}
	r.host("a")
}
