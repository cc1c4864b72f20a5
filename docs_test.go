package lifecycle_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the code that pages show, and api.txt, anew")

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// Every relative link of a page leads to a file that exists. When the link names an
// anchor, the page has a heading or an element with that id.
func TestPagesLinkToWhatExists(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	links := 0
	for _, page := range textFiles(t) {
		if !strings.HasSuffix(page, ".md") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(withoutCode(readPage(t, page)), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), filepath.FromSlash(file))
			}
			if err := hasAnchor(target, anchor); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found: does the pattern still match?", links)
	}
}

// Every page of docs that a comment, a text of the code, a manifest or a script names exists.
func TestCodeNamesPagesThatExist(t *testing.T) {
	named := regexp.MustCompile(`\bdocs/[\w./-]*\.(?:md|txt|json|svg|png)(?:#[\w-]+)?`)
	names := 0
	for _, file := range textFiles(t) {
		for _, m := range named.FindAllString(readPage(t, file), -1) {
			names++
			page, anchor, _ := strings.Cut(m, "#")
			if err := hasAnchor(page, anchor); err != nil {
				t.Errorf("%s names %s: %v", file, m, err)
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names of pages were found: does the pattern still match?", names)
	}
}

// The checks of links find a page, a heading and an id that are missing.
func TestLinkCheckFindsWhatIsMissing(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A title: `code`, and more\n\n## Twice\n\n```sh\n# a comment\n```\n\n## Twice\n\n<a id=\"r13\"></a>\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, anchor := range []string{"", "a-title-code-and-more", "twice", "twice-1", "r13"} {
		if err := hasAnchor(page, anchor); err != nil {
			t.Errorf("#%s: %v", anchor, err)
		}
	}
	for _, anchor := range []string{"a-comment", "twice-2", "r1"} {
		if hasAnchor(page, anchor) == nil {
			t.Errorf("#%s is found", anchor)
		}
	}
	if hasAnchor(page+"x", "") == nil {
		t.Error("a page that does not exist is found")
	}
}

// hasAnchor returns an error when there is no such file, or when it is a page without the
// anchor. The empty anchor is the page itself.
func hasAnchor(file, anchor string) error {
	if anchor == "" {
		_, err := os.Stat(file)
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !anchors(string(text))[anchor] {
		return fmt.Errorf("%s has no heading and no id %q", file, anchor)
	}
	return nil
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
)

// withoutCode returns a page without its blocks and spans of code.
func withoutCode(page string) string {
	return codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(page, ""), "")
}

// anchors returns the ids of a page, and the anchors that a Git forge makes from its headings.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(page, -1) {
		found[m[1]] = true
	}
	drop := regexp.MustCompile(`[^\w\- ]`)
	for line := range strings.Lines(codeBlock.ReplaceAllString(page, "")) {
		title := strings.TrimLeft(line, "#")
		if title == line {
			continue
		}
		title = drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
		anchor := strings.ReplaceAll(title, " ", "-")
		for n := 1; found[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", strings.ReplaceAll(title, " ", "-"), n)
		}
		found[anchor] = true
	}
	return found
}

// textFiles returns the pages, the code and the manifests of the repository, without what
// tests make and what other projects wrote.
func textFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // tests of other packages make folders and remove them
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			switch entry.Name() {
			case ".git", "node_modules", "bin", "results", "testdata":
				return filepath.SkipDir
			}
			return nil
		case !entry.Type().IsRegular():
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".md", ".mod", ".yaml", ".yml", ".sh", ".py", ".mjs", ".rb", ".conf", ".txt", ".proto", ".tpl", ".html", ".js":
			files = append(files, filepath.ToSlash(path))
		}
		if entry.Name() == "Makefile" {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
