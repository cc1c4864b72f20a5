package explain

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/health"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/reflect/protoreflect"

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
		diagnosis.EndClean, diagnosis.EndFailed, diagnosis.EndHung, diagnosis.EndCut, diagnosis.EndLost,
		diagnosis.EndOOM, diagnosis.EndForced, diagnosis.EndPanicked, diagnosis.EndKilled, diagnosis.EndEvicted,
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
	if code, out := explain(t, "Pendin"); code != cli.ExitNotFound || !strings.Contains(out, "did you mean Pending?") {
		t.Errorf("a typo: %d %s", code, out)
	}
}

// Every field of every answer is explained, which is what -o json prints. The texts are the
// contract's own.
func TestEveryFieldIsExplained(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var visit func(m protoreflect.MessageDescriptor)
	visit = func(m protoreflect.MessageDescriptor) {
		if m == nil || seen[m.FullName()] || m.FullName().Parent() == "google.protobuf" {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if text := operatorv1.Comment(f); !m.IsMapEntry() && !strings.HasSuffix(text, ".") {
				t.Errorf("%s has the comment %q, want a sentence", f.FullName(), text)
			}
			visit(f.Message())
		}
	}
	for _, file := range operatorv1.Files() {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				visit(file.Services().Get(i).Methods().Get(j).Output())
			}
		}
	}
	if len(seen) < 40 {
		t.Errorf("only %d messages are printed", len(seen))
	}
	for word, says := range map[string]string{
		"process.ready": "Whether /readyz answers 200 now.", "process.units.restarts": "How often it was started again.", "deadletter.reason": "Why the last attempt failed.",
		"dead-letter": "dead_letter.attempts", "Process.SEEN_AT": "process.seen_at", "process.seen_at.x": "there is no word", "process.x": "did you mean process",
		"BACKLOG": "(worker.backlog)", "units": "How many units run",
	} {
		if _, out := explain(t, word); !strings.Contains(out, says) {
			t.Errorf("explain %s does not say %q: %s", word, says, out)
		}
	}
}

// Every column of every table is explained.
func TestEveryColumnIsExplained(t *testing.T) {
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var texts func(list []ast.Expr)
	texts = func(list []ast.Expr) {
		for _, x := range list {
			if list, ok := x.(*ast.CompositeLit); ok { // of Rows
				texts(list.Elts)
			}
			if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				name, _ := strconv.Unquote(lit.Value)
				found[name] = name != "|" && name != ""
			}
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Head" || f.Sel.Name == "Rows") {
					texts(n.Args)
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Head" {
					if list, ok := n.Value.(*ast.CompositeLit); ok {
						texts(list.Elts)
					}
				}
			}
			return true
		})
	}
	if len(found) < 50 {
		t.Errorf("only %d columns are found", len(found))
	}
	for name, is := range found {
		explained := len(file.Columns[name]) > 0 || slices.ContainsFunc(meanings(), func(m meaning) bool { return m.kind == "column" && m.name == name })
		if is && !explained {
			t.Errorf("the column %s is not explained", name)
		}
	}
	for name, paths := range file.Columns {
		if !found[name] {
			t.Errorf("no table has the column %s", name)
		}
		for _, path := range paths {
			if list := explainFields(path); len(list) == 0 || list[0].name != path || list[0].means == "" {
				t.Errorf("the column %s shows %s, which is not explained", name, path)
			}
		}
	}
}
