package lifecycle_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
