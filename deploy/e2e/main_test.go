package e2e

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen. Nothing is measured
// with it: a machine may be busy.
const patience = 3 * time.Minute

// short says whether one rollout per protocol and the control are enough.
func short() bool { return os.Getenv("E2E") == "short" }

// full skips what the short form leaves out.
func full(t *testing.T) {
	t.Helper()
	if short() {
		t.Skip("not in the short form")
	}
}
