package lifecycle_test

import (
	"go/parser"
	gotoken "go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tutorialStep is a block of the tutorial: a file to write, declarations or lines that
// replace others in a file, or the output of a test that fails there.
var tutorialStep = regexp.MustCompile("(?s)<!-- (write|replace|fails)(?:: (\\S+))? -->\n```\\w+\n(.*?)```\n")

// The code of the tutorial builds after each step as it is printed. Its test fails where the
// page says so, and passes in the end.
func TestTutorial(t *testing.T) {
	page := readPage(t, "docs/tutorial.md")
	dir := t.TempDir()
	shop := newStranger(t, dir, "shop")
	written := 0
	for _, m := range tutorialStep.FindAllStringSubmatch(page, -1) {
		kind, text := m[1], m[3]
		file := filepath.Join(dir, m[2])
		switch kind {
		case "write":
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			written++
		case "replace":
			replaceCode(t, file, text)
			if out, err := shop("vet", "./..."); err != nil {
				t.Fatalf("the program does not build with\n%s\n%s", text, out)
			}
		case "fails":
			if out, err := shop("test", "./..."); err == nil || !strings.Contains(out, strings.TrimSpace(text)) {
				t.Errorf("the test does not fail with %q: %v\n%s", text, err, out)
			}
		}
	}
	if written < 4 {
		t.Fatalf("only %d files were found: does the pattern still match?", written)
	}
	if out, err := shop("test", "./..."); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// newStranger makes an empty module in a folder, as a user has it, which requires this
// one. It returns a function that runs the go command there.
func newStranger(t *testing.T, dir, module string) func(args ...string) (string, error) {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const path = "github.com/pleme-io/lifecycle-go"
	mod := strings.Replace(readPage(t, "go.mod"), "module "+path, "module "+module, 1) // with what this one requires
	mod += "\nrequire " + path + " v0.0.0\n\nreplace " + path + " => " + root + "\n"
	for name, text := range map[string]string{"go.mod": mod, "go.sum": readPage(t, "go.sum")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// replaceCode replaces the function of the same name by text, or the lines that begin as
// the text does.
func replaceCode(t *testing.T, file, text string) {
	t.Helper()
	code := readPage(t, file)
	fset := gotoken.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, code, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		if name := nameOf(d); name == "" || !strings.Contains(text, ") "+name[strings.Index(name, ".")+1:]+"(") {
			continue
		}
		from, to := fset.Position(d.Pos()).Offset, fset.Position(d.End()).Offset
		comment := strings.LastIndex(code[:from], "\n\n") + 2 // the doc comment above it
		if err := os.WriteFile(file, []byte(code[:comment]+text+code[to:]), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	first, _, _ := strings.Cut(text, "\n")
	first = strings.TrimSuffix(first, ".")
	if !strings.Contains(code, first+"\n") {
		t.Fatalf("%s has no line %q", file, first)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(code, first+"\n", text, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}
