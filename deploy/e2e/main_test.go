package e2e

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the waits of a test. It is long because a machine may be busy; no
// test measures with it.
const patience = 3 * time.Minute

// short reports whether to run only one rollout per protocol and the control.
func short() bool { return os.Getenv("E2E") == "short" }

// full skips a test in the short form.
func full(t *testing.T) {
	t.Helper()
	if short() {
		t.Skip("not in the short form")
	}
}
