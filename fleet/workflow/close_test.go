package workflow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestCloseIsBounded closes a Manager whose view is held by a participant's method.
func TestCloseIsBounded(t *testing.T) {
	m, b := slowRig(t, 1)
	held, release := make(chan struct{}, 1), make(chan struct{})
	hook := func() {
		held <- struct{}{}
		<-release
	}
	probeHook.Store(&hook)
	defer probeHook.Store(nil)
	_, err := b.JetStream().Publish(testContext(t), "$KV.MISSIONS.slow.new", []byte(`{"id":"new","phase":"a","probe":"x"}`))
	must(t, err)
	<-held
	long := workflow.SetCloseTime(50 * time.Millisecond)
	err = m.Close()
	workflow.SetCloseTime(long)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "MISSIONS") {
		t.Errorf("close: %v", err)
	}
	if err := m.Transition(testContext(t), "slow", "s000", "b", workflow.TransitionSourceRule, ""); !errors.Is(err, workflow.ErrClosed) {
		t.Errorf("after it: %v", err)
	}
	close(release)
	must(t, m.Close())
}
