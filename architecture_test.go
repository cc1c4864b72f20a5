package lifecycle_test

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const housePage = "docs/internals/architecture.md"

// The tables of docs/internals/architecture.md name every file of the root package, every
// folder below internal/, every module and every package of fleet, and nothing that does
// not exist.
func TestArchitecturePageShowsTheHouse(t *testing.T) {
	page := readPage(t, housePage)
	_, rooms, found := strings.Cut(page, "## The packages\n")
	rooms, _, end := strings.Cut(rooms, "\n## Who may import whom\n")
	if !found || !end {
		t.Fatalf("%s: the section about the rooms is missing", housePage)
	}
	var named []string
	cell := regexp.MustCompile("(?m)^\\| (`[^|]+) \\|")
	for _, m := range cell.FindAllStringSubmatch(rooms, -1) {
		for _, name := range quotedNames(m[1]) {
			named = append(named, strings.TrimSuffix(name, "/"))
		}
	}
	for _, name := range named {
		if _, err := os.Stat(filepath.FromSlash(name)); err != nil {
			t.Errorf("%s names %s: %v", housePage, name, err)
		}
	}
	exist := packagesBelow(t, "fleet")
	for _, pattern := range []string{"*.go", "internal/*", "go.mod", "*/go.mod", "*/*/go.mod"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			name := strings.TrimSuffix(filepath.ToSlash(path), "/go.mod")
			if name == "go.mod" {
				name = "."
			}
			if !strings.HasSuffix(name, "_test.go") {
				exist = append(exist, name)
			}
		}
	}
	for _, name := range exist {
		if !slices.Contains(named, name) {
			t.Errorf("%s does not name %s", housePage, name)
		}
	}
}

// The tables of the ways in docs/internals/architecture.md number their steps, and name files that
// exist and functions that these files declare. The pictures name files of the tables.
func TestArchitectureWaysNameWhatExists(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| `([^`|]+)` \\| ([^|]*)\\|")
	participant := regexp.MustCompile(`(?m)^ +participant \w+ as (\S+\.\w+)$`)
	_, rest, found := strings.Cut(readPage(t, housePage), "\n## The way of ")
	if !found {
		t.Fatalf("%s: the ways are missing", housePage)
	}
	for section := range strings.SplitSeq(rest, "\n## The way of ") {
		way, _, _ := strings.Cut(section, "\n")
		var files []string
		for i, m := range row.FindAllStringSubmatch(section, -1) {
			if m[1] != strconv.Itoa(i+1) {
				t.Errorf("the way of %s: step %s comes at place %d", way, m[1], i+1)
			}
			files = append(files, m[2])
			declared := declaredIn(t, m[2])
			for _, name := range quotedNames(m[3]) {
				if !slices.Contains(declared, name) {
					t.Errorf("the way of %s, step %s: %s does not declare %s", way, m[1], m[2], name)
				}
			}
		}
		if len(files) == 0 {
			t.Errorf("the way of %s has no steps", way)
		}
		for _, m := range participant.FindAllStringSubmatch(section, -1) {
			if !slices.Contains(files, m[1]) {
				t.Errorf("the way of %s: its picture has %s, and its table has not", way, m[1])
			}
		}
	}
}

func quotedNames(cell string) (names []string) {
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		names = append(names, m[1])
	}
	return names
}

// declaredIn returns the names of the functions and methods that a file declares: a Go file,
// or a script whose functions are constants.
func declaredIn(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Errorf("%s: %v", housePage, err)
		return nil
	}
	switch path.Ext(file) {
	case ".go":
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				names = append(names, fn.Name.Name)
			}
		}
	case ".js":
		for _, m := range regexp.MustCompile(`const (\w+) = (?:async )?\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// packagesBelow returns the folders that have Go files which are not tests.
func packagesBelow(t *testing.T, root string) (folders []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "testdata" {
			return filepath.SkipDir
		}
		folder := filepath.ToSlash(filepath.Dir(file))
		source := strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
		if source && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return folders
}
