package lifecycle_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every guarantee names tests, and each of them exists.
func TestContractNamesTestsThatExist(t *testing.T) {
	contract, err := os.ReadFile("docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	funcs := regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz|Benchmark)\w*)\(`)
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range funcs.FindAllSubmatch(src, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`((?:Test|Example|Fuzz|Benchmark)\\w+)`")
	entry := regexp.MustCompile(`^- \*\*([A-Z]\d+)\*\* `)
	seen := map[string]bool{}
	for line := range strings.Lines(string(contract)) {
		m := entry.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if seen[m[1]] {
			t.Errorf("%s has two lines", m[1])
		}
		seen[m[1]] = true
		tests := names.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 && !strings.Contains(line, "Not met") {
			t.Errorf("%s names no test and does not say that it is not met", m[1])
		}
		for _, name := range tests {
			if !declared[name[1]] {
				t.Errorf("%s names %s, which does not exist", m[1], name[1])
			}
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d guarantees: is the format of the lines another?", len(seen))
	}
}
