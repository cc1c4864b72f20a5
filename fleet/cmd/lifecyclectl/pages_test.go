//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// repository is the folder of the repository.
var repository = filepath.Join("..", "..", "..")

// printed is a command line that a page tells its reader to run.
type printed struct{ page, line string }

var (
	fenced     = regexp.MustCompile("(?s)```([a-z]*)\n(.*?)\n *```")
	indented   = regexp.MustCompile(`(?m)^    ((?:go|make|docker|lifecyclectl) .*)$`)
	span       = regexp.MustCompile("`((?:go (?:run|get|install)|source) [^`\n]+|[^`\n]+ \\\\?\\| (?:lifecyclectl|lifecycle-vet|docker) [^`\n]+)`")
	comment    = regexp.MustCompile(`\s{2,}#.*$`)
	unlabelled = regexp.MustCompile(`^(\$ )?(go|make|bash|lifecyclectl|lifecycle-vet|curl|docker|kubectl|helm|kustomize|promtool|jq) `)
)

// printedCommands returns the command lines of the README, of the pages in docs and of those
// beside the manifests: in fenced blocks of sh, bash and console, in fenced blocks of no
// language and in indented ones where the line begins with a program, and in the text
// where they are whole lines to copy. Decisions (docs/adr) are history.
func printedCommands(t *testing.T) (all []printed) {
	t.Helper()
	pages := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/migrate/*.md", "deploy/*.md", "deploy/e2e/*.md", "deploy/helm/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range found {
			page, err = filepath.Rel(repository, page)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, filepath.ToSlash(page))
		}
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(repository, page))
		if err != nil {
			t.Fatal(err)
		}
		add := func(line string) {
			line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(line), "$ "), ""))
			if c := (printed{page, line}); line != "" && !strings.HasPrefix(line, "#") && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
		for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains([]string{"sh", "bash", "console", ""}, m[1]) {
				continue
			}
			for line := range strings.SplitSeq(strings.ReplaceAll(m[2], "\\\n", " "), "\n") {
				if m[1] == "sh" || m[1] == "bash" || unlabelled.MatchString(strings.TrimSpace(line)) {
					add(line)
				}
			}
		}
		rest := fenced.ReplaceAllString(string(text), "")
		for _, m := range indented.FindAllStringSubmatch(rest, -1) {
			add(m[1])
		}
		for _, m := range span.FindAllStringSubmatch(rest, -1) {
			add(strings.ReplaceAll(m[1], `\|`, "|"))
		}
	}
	return all
}
