package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/reference/lifecyclectl.md anew")

// TestReference checks docs/reference/lifecyclectl.md against the commands. "make docs"
// runs it with -update.
func TestReference(t *testing.T) {
	file := filepath.Join("..", "..", "..", "docs", "reference", "lifecyclectl.md")
	want := reference(newRoot())
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf(`%s is stale: run "make docs"`, file)
	}
}

// reference writes every command as a page.
func reference(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("<!-- Written by the tests of fleet/cmd/lifecyclectl from its commands. Do not edit: run \"make docs\". -->\n\n# lifecyclectl\n\n")
	long, _, _ := strings.Cut(root.Long, "Exit status:")
	b.WriteString(strings.TrimSpace(long) + "\n\n    go install github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl@latest\n\n")
	b.WriteString("Until v0.1.0 is tagged, that command finds no version: run `go install ./fleet/cmd/lifecyclectl` in a checkout of the repository instead.\n\n")
	b.WriteString("`source <(lifecyclectl completion bash)` completes commands, flags, and the types, ids and phases that the server has; zsh, fish and PowerShell likewise.\n")

	b.WriteString("\n## Size\n\nOn Linux and amd64 `go install` makes a program of 63 MB. " +
		"Without symbols (`go install -ldflags='-s -w'`) it has 44 MB. `workers dev` is in it with three engines, and 15 MB are there " +
		"because of JavaScript's: goja finds methods by their names at run time, so the linker cannot remove methods that no other " +
		"code calls. A build without JavaScript has 29 MB, and one without any engine 26 MB. No such build is published: " +
		"`workers dev` would not run what the hosts run.\n")

	b.WriteString("\n## Exit status\n\n| status | meaning |\n| --- | --- |\n")
	for _, s := range cli.Statuses {
		fmt.Fprintf(&b, "| %d | %s |\n", s.Status, s.Means)
	}
	b.WriteString("\n`run` exits with its program's status.\n")

	b.WriteString("\n## Connection\n\nEvery command that calls a server has these flags. A flag overrides its variable.\n\n| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n")
	cli.ConnectionFlags().VisitAll(func(f *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", strings.TrimSpace(f.Name+" "+kind), cli.Variable(f.Name), byDefault(f), usage)
	})

	b.WriteString("\n## Output\n\n`-o json` and `-o yaml` use the names of [the contract](../../fleet/operator/proto/lifecycle/operator/v1), including empty fields; 64-bit integers are strings, as always in protobuf's JSON. A watch writes one JSON object per line. Only terminals get colours, and not with `NO_COLOR`. Control characters in texts are shown as escapes.\n")

	b.WriteString("\n## Commands\n")
	for _, c := range root.Commands() {
		section(&b, c)
	}
	return b.Bytes()
}

func byDefault(f *pflag.Flag) string {
	if f.DefValue == "" || f.DefValue == "false" || f.DefValue == "[]" {
		return ""
	}
	return "`" + f.DefValue + "`"
}

func section(b *bytes.Buffer, c *cobra.Command) {
	if !c.IsAvailableCommand() || c.Name() == "completion" || c.Name() == "help" {
		return
	}
	if c.HasSubCommands() {
		for _, sub := range c.Commands() {
			section(b, sub)
		}
		return
	}
	fmt.Fprintf(b, "\n### %s\n\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short
	}
	text = strings.TrimSpace(text)
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	if strings.Contains(text, "\n  ") { // it has columns
		fmt.Fprintf(b, "```\n%s\n```\n", text)
	} else {
		b.WriteString(text + "\n")
	}
	fmt.Fprintf(b, "\n```\n%s\n", c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(b, "\n%s\n", c.Example)
	}
	b.WriteString("```\n")
	head := false
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !head {
			head = true
			b.WriteString("\n| flag | default | meaning |\n| --- | --- | --- |\n")
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, byDefault(f), strings.ReplaceAll(usage, "|", "\\|"))
	})
}
