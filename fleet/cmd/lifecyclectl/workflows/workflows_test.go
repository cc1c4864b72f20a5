package workflows

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// A command that people copy is one command, whatever the name of the workflow.
func TestCommandOfAHooksDeadLetters(t *testing.T) {
	table := output.NewTable(new(bytes.Buffer))
	definitionTable(table, &operatorv1.Definition{Type: "drone survey; reboot", Hooks: []string{"notify"}})
	if text, want := string(table.Text()), "lifecyclectl dead-letters 'drone survey; reboot/notify'"; !strings.Contains(text, want) {
		t.Errorf("want %s:\n%s", want, text)
	}
}
