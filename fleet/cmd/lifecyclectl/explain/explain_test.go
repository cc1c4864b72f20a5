package explain

import (
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/internal/endclass"
	"github.com/pleme-io/lifecycle-go/health"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/processes"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// explain runs the command, and returns its error as a user sees it.
func explain(t *testing.T, word string) (status int, out string) {
	t.Helper()
	var b strings.Builder
	cmd := Command()
	cmd.SetArgs([]string{word})
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	if err != nil {
		b.WriteString(err.Error())
	}
	return cli.StatusOf(err), b.String()
}

// Every state, event and rule that lists show is explained, and no other.
func TestEveryWordIsExplained(t *testing.T) {
	want := map[string][]string{"probe": {string(health.Up), string(health.Down), string(health.Unknown)}}
	for _, s := range lifecycle.Phases().Phases() {
		want["phase"] = append(want["phase"], string(s))
	}
	for _, s := range worker.Transitions().Phases() {
		want["unit"] = append(want["unit"], string(s))
	}
	for _, s := range host.States().Phases() {
		want["worker"] = append(want["worker"], string(s))
	}
	for _, r := range diagnosis.Rules {
		want["rule"] = append(want["rule"], r.Name)
	}
	want["end"] = []string{
		endclass.Clean, endclass.Failed, endclass.Hung, endclass.Cut, endclass.Lost,
		endclass.OOM, endclass.Forced, endclass.Panicked, endclass.Killed, endclass.Evicted,
	}
	got := map[string][]string{}
	for _, m := range meanings() {
		if m.means == "" || !strings.HasSuffix(m.means, ".") {
			t.Errorf("%s %s means %q", m.kind, m.name, m.means)
		}
		if slices.Contains(got[m.kind], m.name) {
			t.Errorf("%s %s is explained twice", m.kind, m.name)
		}
		got[m.kind] = append(got[m.kind], m.name)
	}
	for kind, names := range want {
		slices.Sort(names)
		slices.Sort(got[kind])
		if !slices.Equal(names, got[kind]) {
			t.Errorf("%s: %q are explained, want %q", kind, got[kind], names)
		}
	}
	// What the rules and the table of events make of an event has to be explained.
	for _, end := range got["end"] {
		if e := (&operatorv1.Event{Kind: "exit", To: end}); (processes.Tone(e) == output.Red) != diagnosis.Bad(e) {
			t.Errorf("an end that is %s has another colour than its rule", end)
		}
	}
	for word, says := range map[string]string{"pending": "backoff", "out-of-memory": "memory ran out", "lost": "without a word", "stopped": "It ended cleanly"} {
		if code, out := explain(t, word); code != cli.ExitOK || !strings.Contains(out, says) {
			t.Errorf("explain %s: %d %s", word, code, out)
		}
	}
	if code, out := explain(t, "Pendin"); code != cli.ExitNotFound || !strings.Contains(out, "lifecyclectl explain lists all") {
		t.Errorf("a typo: %d %s", code, out)
	}
}
