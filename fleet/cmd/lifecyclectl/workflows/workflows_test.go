package workflows

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// The command for the dead letters of a hook quotes the name of the workflow: a shell runs no part of it.
func TestCommandOfAHooksDeadLetters(t *testing.T) {
	table := output.NewTable(new(bytes.Buffer))
	definitionTable(table, &operatorv1.Definition{Type: "drone survey; reboot", Hooks: []string{"notify"}})
	if text, want := string(table.Text()), "lifecyclectl dead-letters 'drone survey; reboot/notify'"; !strings.Contains(text, want) {
		t.Errorf("want %s:\n%s", want, text)
	}
}
