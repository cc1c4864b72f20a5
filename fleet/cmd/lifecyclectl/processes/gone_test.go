package processes

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process that was stopped with SIGSTOP, or whose network is cut, has not ended: describe does not
// say that it has.
func TestStateOfAProcessThatIsGone(t *testing.T) {
	lost := &operatorv1.Event{Kind: "lost", To: "lost"}
	for name, test := range map[string]struct {
		past []*operatorv1.Event // newest first
		want string
	}{
		"it said so":                   {[]*operatorv1.Event{{Kind: "exit", To: "clean"}, {Kind: "phase", To: "stopping"}}, "ended"},
		"the kernel killed it":         {[]*operatorv1.Event{{Kind: "lost", To: "oom"}}, "ended"},
		"nothing is known":             {[]*operatorv1.Event{{Kind: "command"}, lost, {Kind: "exit", To: "clean"}}, "lost: it does not announce itself"},
		"its end is not in the events": {[]*operatorv1.Event{{Kind: "unit"}}, "ended"},
	} {
		if got := goneState(test.past); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
