package lifecycle

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// scenarioEnv names the scenario that the test binary is to run in place of the
// tests.
const scenarioEnv = "LIFECYCLE_TEST_SCENARIO"

// scenarios are the programs that tests run as processes of their own, to send
// them real signals. Each returns its exit status.
var scenarios = map[string]func() int{}

func TestMain(m *testing.M) {
	if name := os.Getenv(scenarioEnv); name != "" {
		program := scenarios[name]
		if program == nil {
			fmt.Fprintf(os.Stderr, "no scenario %q\n", name)
			os.Exit(99)
		}
		os.Exit(program())
	}
	// The tests may have been started by nohup or in the background of a script.
	// A process inherits signals that are ignored; signals that are caught have
	// their default effect in it.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	goleak.VerifyTestMain(m)
}
