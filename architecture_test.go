package lifecycle_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const housePage = "docs/architecture.md"

// The tables of docs/architecture.md name every file of the root package, every
// folder below internal/ and every module, and nothing that does not exist.
func TestArchitecturePageShowsTheHouse(t *testing.T) {
	page := readPage(t, housePage)
	_, rooms, found := strings.Cut(page, "## The rooms\n")
	rooms, _, end := strings.Cut(rooms, "\n## Who may import whom\n")
	if !found || !end {
		t.Fatalf("%s: the section about the rooms is missing", housePage)
	}
	var named []string
	cell := regexp.MustCompile("(?m)^\\| (`[^|]+) \\|")
	for _, m := range cell.FindAllStringSubmatch(rooms, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[1], -1) {
			named = append(named, strings.TrimSuffix(name[1], "/"))
		}
	}
	for _, name := range named {
		if _, err := os.Stat(filepath.FromSlash(name)); err != nil {
			t.Errorf("%s names %s: %v", housePage, name, err)
		}
	}
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
			if !strings.HasSuffix(name, "_test.go") && !slices.Contains(named, name) {
				t.Errorf("%s does not name %s", housePage, name)
			}
		}
	}
}

// The three paths of docs/architecture.md name files that exist and functions
// that these files declare. No file is entered more than twice on a path.
func TestArchitecturePathsNameWhatExists(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| `([^`]+)` \\| ([^|]+) \\|")
	name := regexp.MustCompile("`([^`]+)`")
	paths := 0
	for section := range strings.SplitSeq(readPage(t, housePage), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		if !strings.HasPrefix(title, "The path of ") {
			continue
		}
		paths++
		entered := map[string]int{}
		for i, m := range row.FindAllStringSubmatch(body, -1) {
			step, file, functions := m[1], m[2], m[3]
			if step != strconv.Itoa(i+1) {
				t.Errorf("%s: step %s stands at place %d", title, step, i+1)
			}
			if entered[file]++; entered[file] > 2 {
				t.Errorf("%s enters %s %d times", title, file, entered[file])
			}
			src, err := os.ReadFile(filepath.FromSlash(file))
			if err != nil {
				t.Errorf("%s, step %s: %v", title, step, err)
				continue
			}
			for _, fn := range name.FindAllStringSubmatch(functions, -1) {
				declared := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + regexp.QuoteMeta(fn[1]) + `[(\[]`)
				if !declared.Match(src) {
					t.Errorf("%s, step %s: %s declares no %s", title, step, file, fn[1])
				}
			}
		}
		if len(entered) < 8 {
			t.Errorf("%s names %d files: was the table lost?", title, len(entered))
		}
	}
	if paths != 3 {
		t.Errorf("%s has %d paths, want 3", housePage, paths)
	}
}
