package diagnosis_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
)

var update = flag.Bool("update", false, "write the rules into docs/guides/operating.md anew")

// The page lists the rules. "make docs" runs this with -update.
func TestPageListsTheRules(t *testing.T) {
	file := filepath.Join("..", "..", "..", "docs", "guides", "operating.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "run \"make docs\" -->\n", "<!-- end of rules -->"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the rules", file)
	}
	var b strings.Builder
	b.WriteString("| rule | severity | what is wrong |\n| --- | --- | --- |\n")
	for _, r := range diagnosis.Rules {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, r.Severity, r.Means)
	}
	want := head + begin + b.String() + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf(`%s is stale: run "make docs"`, file)
	}
}
