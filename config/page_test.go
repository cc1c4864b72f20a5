package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The Go code of docs/guides/config.md is part of code that is tested.
func TestGuestPageShowsTestedCode(t *testing.T) {
	plain := func(s string) string {
		var b strings.Builder
		for line := range strings.Lines(s) {
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
		return b.String()
	}
	tested := ""
	for _, pattern := range []string{"*_test.go", "*/*_test.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			tested += plain(string(text))
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "guides", "config.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 10 {
		t.Errorf("the page has %d blocks of code", len(blocks))
	}
	for _, m := range blocks {
		if !strings.Contains(tested, plain(m[1])) {
			t.Errorf("no test has this code of the page:\n%s", m[1])
		}
	}
}
