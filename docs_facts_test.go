package lifecycle_test

import (
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The versions of peers that a page names are the versions that the benchmarks measure and the
// examples compile with.
func TestPagesNameTheVersionsThatAreMeasured(t *testing.T) {
	required := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)
	versions := map[string]string{}
	for _, m := range required.FindAllStringSubmatch(readPage(t, "bench/go.mod"), -1) {
		versions[m[1]] = m[2]
	}
	named := regexp.MustCompile(`(golang\.org/x/sync|github\.com/oklog/run|go\.uber\.org/fx|github\.com/thejerf/suture(?:/v4)?|sigs\.k8s\.io/controller-runtime)[@ ](v[\d.]*\d)`)
	found := 0
	for _, page := range docPages(t) {
		if page != comparisonPage && !strings.HasPrefix(page, migratingPages) {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(readPage(t, page), -1) {
			found++
			path := m[1]
			if path == "github.com/thejerf/suture" {
				path += "/v4"
			}
			if versions[path] != m[2] {
				t.Errorf("%s names %s %s, and bench/go.mod requires %s", page, path, m[2], versions[path])
			}
		}
	}
	own := regexp.MustCompile(`(?m)^\t(golang\.org/x/sync|github\.com/oklog/run|go\.uber\.org/fx|github\.com/thejerf/suture/v4|sigs\.k8s\.io/controller-runtime) (v\S+)`)
	for _, m := range own.FindAllStringSubmatch(readPage(t, "examples/adopt/go.mod"), -1) {
		found++
		if versions[m[1]] != m[2] {
			t.Errorf("examples/adopt compiles with %s %s, and bench measures %s", m[1], m[2], versions[m[1]])
		}
	}
	if found < 15 {
		t.Errorf("only %d versions were found: do the patterns still match?", found)
	}
}

const (
	comparisonPage = "docs/reference/comparison.md"
	migratingPages = "docs/guides/migrating/"
)

// factPages are the pages whose quoted texts, names and numbers of rules are checked.
var factPages = []string{
	"docs/README.md",
	"docs/guides/job.md",
	"docs/guides/kubernetes.md",
	"docs/guides/leader.md",
	"docs/guides/pool.md",
	"docs/guides/troubleshooting.md",
	"docs/guides/workers.md",
}

// quoted is a text that a process prints, in a page: a list item "- log `…`", "- error
// `…`", "- last words `…`" or "- answer `…`". An ellipsis stands for a value.
var quoted = regexp.MustCompile("(?m)^- (log|error|last words|answer|stderr) `([^`]+)`")

// What a page quotes as printed is a text of the code.
func TestPagesQuoteWhatIsPrinted(t *testing.T) {
	texts := textsOfCode(t)
	found := 0
	for _, page := range factPages {
		for _, m := range quoted.FindAllStringSubmatch(readPage(t, page), -1) {
			for part := range strings.SplitSeq(m[2], "…") {
				if part = strings.Trim(part, " :;(),"); part == "" {
					continue
				}
				found++
				if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) }) {
					t.Errorf("%s quotes %q, and no text of the code has it", page, part)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d texts are quoted: does the pattern still match?", found)
	}
}

// textsOfCode returns every string literal of the code that is not a test.
func textsOfCode(t *testing.T) (texts []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // tests of other packages make folders and remove them
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", "node_modules", "bin", "results", "testdata", "examples", "bench", "tools", "gen":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == gotoken.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					texts = append(texts, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// Metrics, alerts, keys and rules of vet that these pages name exist.
func TestPagesNameWhatExists(t *testing.T) {
	metrics, vet := readPage(t, "docs/reference/metrics.md"), readPage(t, "docs/reference/vet.md")
	alerts, keys := readPage(t, "deploy/alerts/lifecycle.yaml"), readPage(t, "docs/reference/config.md")
	kinds := []struct {
		what   string
		name   *regexp.Regexp
		exists func(name string) bool
	}{
		{"metric", regexp.MustCompile("`(lifecycle_[a-z_]+)(?:`|[{])"), func(n string) bool { return strings.Contains(metrics, "`"+n+"`") }},
		{"alert", regexp.MustCompile("`(Lifecycle[A-Z]\\w+)`"), func(n string) bool { return strings.Contains(alerts, "alert: "+n+"\n") }},
		{"rule of vet", regexp.MustCompile("rule `([a-z-]+)`"), func(n string) bool { return strings.Contains(vet, "| `"+n+"` |") }},
		{"key", regexp.MustCompile("`(drain_\\w+|shutdown_\\w+|unit_\\w+|hook_\\w+|probe_\\w+|termination_\\w+|liveness_\\w+|startup_\\w+|pre_stop|linger|accept_quiet|health_addr|start_timeout|reload_timeout|memory_\\w+|statusz_off|admin_\\w+|exit_\\w+|go_away_after|min_slice)`"),
			func(n string) bool { return strings.Contains(keys, "[`"+n+"`](#"+n+")") }},
	}
	found := 0
	for _, page := range factPages {
		text := readPage(t, page)
		for _, kind := range kinds {
			for _, m := range kind.name.FindAllStringSubmatch(text, -1) {
				if found++; !kind.exists(m[1]) {
					t.Errorf("%s names the %s %s, which does not exist", page, kind.what, m[1])
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names were found: do the patterns still match?", found)
	}
}

// Names of Go that a page has in code spans, such as `lifecycle.ExitCode` and
// `app.OnDrain`, are exported by their package.
func TestPagesNameWhatGoExports(t *testing.T) {
	span := regexp.MustCompile("`[^`\n]+`")
	name := regexp.MustCompile(`\b(lifecycle|lifecycletest|health|config|worker|kube|grpcdrain|metrics|app|App|supervisor)\.([A-Z]\w*)`)
	folders := map[string]string{"lifecycle": ".", "app": ".", "App": ".", "supervisor": "worker"}
	exports := map[string]map[string]bool{}
	found := 0
	for _, page := range docPages(t) {
		checked := slices.Contains(factPages, page) || page == comparisonPage || strings.HasPrefix(page, migratingPages)
		if !checked {
			continue
		}
		for _, code := range span.FindAllString(readPage(t, page), -1) {
			for _, m := range name.FindAllStringSubmatch(code, -1) {
				found++
				folder := folders[m[1]]
				if folder == "" {
					folder = m[1]
				}
				if exports[folder] == nil {
					exports[folder] = exported(t, folder)
				}
				if !exports[folder][m[2]] {
					t.Errorf("%s names %s.%s, which does not exist", page, m[1], m[2])
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names were found: do the patterns still match?", found)
	}
}

// exported returns the exported names of a package: functions, methods, types, variables,
// constants.
func exported(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						names[spec.Name.Name] = true
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							names[id.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
