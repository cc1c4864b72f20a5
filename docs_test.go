package lifecycle_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every relative link in the README, the pages beside it and the pages in docs/
// leads to a file that exists. When the link names a heading, the file has it.
func TestPagesLinkToWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	links := 0
	check := func(page string) {
		for _, m := range link.FindAllStringSubmatch(readPage(t, page), -1) {
			if strings.Contains(m[1], "://") || m[1][0] == '"' { // Load[T]("file") is code
				continue
			}
			links++
			path, heading, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), filepath.FromSlash(path))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
				continue
			}
			if heading != "" && !headings(readPage(t, target))[heading] {
				t.Errorf("%s links to %s: %s has no such heading", page, m[1], target)
			}
		}
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		check(page)
	}
	err = filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			check(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 50 {
		t.Errorf("only %d links were found: does the pattern still match?", links)
	}
}

// headings returns the anchors that a Git forge makes from a page's headings.
func headings(page string) map[string]bool {
	anchors := map[string]bool{}
	drop := regexp.MustCompile(`[^\w\- ]`)
	for line := range strings.Lines(page) {
		title := strings.TrimLeft(line, "#")
		if title != line {
			title = drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			anchors[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return anchors
}
