package real

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/migrate/projects.md")

// part is a file and the functions of it that count, a method without its type. From is
// the text with which the first line of a function that counts begins; "" is its head.
type part struct {
	file, from string
	functions  []string
}

// projects are the functions of each program that start, watch and stop it. Those before
// are in the module of the project, where Go keeps it.
var projects = []struct {
	name, module  string
	before, after []part
}{
	{"podinfo", "github.com/stefanprodan/podinfo", []part{
		{"cmd/podinfo/main.go", "var grpcCfg", []string{"main"}},
		{"pkg/api/http/server.go", "", []string{"startServer", "startSecureServer"}},
		{"pkg/signals/shutdown.go", "", []string{"NewShutdown", "Graceful"}},
		{"pkg/signals/signal.go", "", []string{"SetupSignalHandler"}},
	}, []part{{"podinfo/main.go", "", []string{"main", "run", "serveCalls"}}}},
	{"ratelimit", "github.com/envoyproxy/ratelimit", []part{
		{"src/service_cmd/main.go", "", []string{"main"}},
		{"src/service_cmd/runner/runner.go", "", []string{"createLimiter", "Run", "Stop"}},
		{"src/server/server_impl.go", "", []string{"Start", "startGrpc", "Stop", "handleGracefulShutdown"}},
	}, []part{{"ratelimit/main.go", "", []string{"main", "run", "backend"}}}},
	{"trust-manager", "github.com/cert-manager/trust-manager", []part{
		{"cmd/trust-manager/main.go", "", []string{"main"}},
		{"cmd/trust-manager/app/app.go", "", []string{"NewCommand"}},
	}, []part{{"trustmanager/main.go", "", []string{"main", "run"}}}},
}

var linesOfProjects = regexp.MustCompile(`(?s)(<!-- lines of projects -->\n)(.*?)(<!-- /lines of projects -->)`)

// The table of docs/migrate/projects.md has the lines of the programs as they are.
// -update writes it.
func TestProjectsAreCounted(t *testing.T) {
	page := filepath.Join("..", "..", "..", "docs", "migrate", "projects.md")
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| project | version | before | after |\n| --- | --- | --- | --- |\n")
	for _, p := range projects {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", p.module).Output()
		if err != nil {
			t.Fatal(err)
		}
		dir, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		fmt.Fprintf(&table, "| %s | %s | %d | %d |\n", p.name, version, count(t, dir, p.before), count(t, ".", p.after))
	}
	if !linesOfProjects.Match(got) {
		t.Fatalf("%s has no table of lines", page)
	}
	want := linesOfProjects.ReplaceAll(got, []byte("${1}"+table.String()+"${3}"))
	switch {
	case bytes.Equal(got, want):
	case *update:
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table than this: run \"make docs\"\n%s", page, table.String())
	}
}

// count returns the lines of the parts, without empty ones and comments.
func count(t *testing.T, dir string, parts []part) (n int) {
	t.Helper()
	for _, p := range parts {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(p.file)))
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, p.file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		found := 0
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !slices.Contains(p.functions, f.Name.Name) {
				continue
			}
			found++
			counts := p.from == ""
			for _, line := range lines[fset.Position(f.Pos()).Line-1 : fset.Position(f.End()).Line] {
				line = strings.TrimSpace(line)
				counts = counts || strings.HasPrefix(line, p.from)
				if counts && line != "" && !strings.HasPrefix(line, "//") {
					n++
				}
			}
		}
		if found != len(p.functions) {
			t.Errorf("%s has %d of the functions %v", p.file, found, p.functions)
		}
	}
	return n
}
