package processes

import (
	"errors"
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

// An archive says what it does not have.
func TestMissingPartsAreNamed(t *testing.T) {
	b := &archive{name: "bundle"}
	b.add("audit.json", nil, errors.New("the server says password=hunter2"))
	b.add("about.txt", []byte("made by a test"), nil)
	if _, err := b.pack(); err != nil {
		t.Fatal(err)
	}
	last := b.files[len(b.files)-1]
	if text := string(last.text); last.name != "missing.txt" || !strings.Contains(text, "audit.json: the server says") || strings.Contains(text, "hunter2") {
		t.Errorf("%s: %s", last.name, text)
	}
}
