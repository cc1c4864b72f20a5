package lifecycle_test

import (
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The limits of the root package. Move part of a change that exceeds them into a
// package of its own.
const (
	maxRootFiles = 17   // non-test files of the root package
	maxRootLines = 4300 // their lines
	maxRootNames = 75   // lines of go doc -short: the names that a user sees
	maxFields    = 20   // of a struct of the root package
	maxFileLines = 455  // of any file that is not generated
)

func TestRootStaysSmall(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files, lines := 0, 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files++
		lines += countLines(t, name)
		checkFields(t, name)
	}
	if files > maxRootFiles || lines > maxRootLines {
		t.Errorf("the root package has %d files and %d lines, want at most %d and %d", files, lines, maxRootFiles, maxRootLines)
	}
}

// checkFields reports structs with more than maxFields fields.
func checkFields(t *testing.T, name string) {
	t.Helper()
	file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name == "Config" { // Config is a list of keys
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok && s.Fields.NumFields() > maxFields {
			t.Errorf("%s: %s has %d fields, want at most %d", name, spec.Name.Name, s.Fields.NumFields(), maxFields)
		}
		return true
	})
}

// api.txt lists the exported names of the root package, so that a review sees
// each change. -update writes the file.
func TestExportedNamesAreKnown(t *testing.T) {
	out, err := exec.Command("go", "doc", "-short", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("api.txt", out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(want) {
		t.Errorf("the exported names are not those of api.txt; if the change is intended: go test -run %s . -update\n%s", t.Name(), out)
	}
	if n := strings.Count(string(out), "\n"); n > maxRootNames {
		t.Errorf("%d exported names, want at most %d", n, maxRootNames)
	}
}

// Every file is short enough to be read as one subject, tests and pages included.
func TestFilesAreShort(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // tests of other packages make folders and remove them
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", "node_modules", "bin", "results":
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".proto", ".py", ".js", ".mjs", ".ts", ".html", ".css", ".sh", ".yaml", ".yml", ".tmpl", ".txtar":
		default:
			return nil
		}
		if n := countLines(t, path); n > maxFileLines && !generated(t, path) {
			t.Errorf("%s has %d lines, want at most %d", path, n, maxFileLines)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// generated reports whether a program writes the file.
func generated(t *testing.T, path string) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := string(text[:min(len(text), 2048)])
	for _, mark := range []string{"Code generated", "DO NOT EDIT", "is generated", "Do not edit", "is made from"} {
		if strings.Contains(head, mark) {
			return true
		}
	}
	return false
}

func countLines(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}
