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

// readerPages are the pages whose command lines TestCommandsOfPagesWork runs. Decisions
// (docs/internals/adr) are history.
var readerPages = []string{"README.md", "docs/*.md", "docs/guides/*.md", "docs/guides/migrating/*.md", "docs/reference/*.md", "docs/reference/guarantees/*.md", "deploy/*.md", "deploy/e2e/*.md", "deploy/helm/*/*.md"}

// pagesOf returns the pages that the patterns match, as paths in the repository.
func pagesOf(t *testing.T, patterns ...string) (pages []string) {
	t.Helper()
	for _, pattern := range patterns {
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
	return pages
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commandLines returns the command lines of pages: in fenced blocks of sh, bash and console,
// in fenced blocks of no language and in indented ones where the line begins with a program,
// and in the text where they are whole lines to copy.
func commandLines(t *testing.T, pages []string) (all []printed) {
	t.Helper()
	for _, page := range pages {
		text := readPage(t, page)
		add := func(line string) {
			line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(line), "$ "), ""))
			if c := (printed{page, line}); line != "" && !strings.HasPrefix(line, "#") && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			if !slices.Contains([]string{"sh", "bash", "console", ""}, m[1]) {
				continue
			}
			for line := range strings.SplitSeq(strings.ReplaceAll(m[2], "\\\n", " "), "\n") {
				if m[1] == "sh" || m[1] == "bash" || unlabelled.MatchString(strings.TrimSpace(line)) {
					add(line)
				}
			}
		}
		rest := fenced.ReplaceAllString(text, "")
		for _, m := range indented.FindAllStringSubmatch(rest, -1) {
			add(m[1])
		}
		for _, m := range span.FindAllStringSubmatch(rest, -1) {
			add(strings.ReplaceAll(m[1], `\|`, "|"))
		}
	}
	return all
}

// named is a command in a code span, as a page names it in its text.
var named = regexp.MustCompile("`((?:go run|make|bash|lifecyclectl) [^`\n|]+)`")

// The commands that a page names in its text exist, and so do those of the pages for
// contributors: the target of make, the command of lifecyclectl with its flags, the program
// or the script of this repository.
func TestCommandsOfPagesExist(t *testing.T) {
	forContributors := pagesOf(t, "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", ".github/*.md", "examples/*/*.md", "vet/*.md")
	pages := append(pagesOf(t, readerPages...), forContributors...)
	all := commandLines(t, pages)
	for _, page := range pages {
		for _, m := range named.FindAllStringSubmatch(readPage(t, page), -1) {
			all = append(all, printed{page, m[1]})
		}
	}
	makefile := "\n" + readPage(t, "Makefile")
	found := map[string]int{}
	for _, c := range all {
		words := strings.Fields(c.line)
		found[words[0]]++
		switch words[0] {
		case "make":
			for _, target := range words[1:] {
				if !strings.Contains(target, "=") && !strings.Contains(makefile, "\n"+target+":") {
					t.Errorf("%s: %q: the Makefile has no target %s", c.page, c.line, target)
				}
			}
		case "bash":
			if _, err := os.Stat(filepath.Join(repository, words[1])); err != nil {
				t.Errorf("%s: %q: %v", c.page, c.line, err)
			}
		case "go":
			if words[1] == "run" && strings.HasPrefix(words[2], "./") && len(pagesOf(t, words[2]+"/*.go")) == 0 {
				t.Errorf("%s: %q: there is no program %s", c.page, c.line, words[2])
			}
		case "lifecyclectl":
			if what := missing(words[1:]); what != "" {
				t.Errorf("%s: %q: lifecyclectl has no %s", c.page, c.line, what)
			}
		}
	}
	for name, least := range map[string]int{"go": 10, "make": 20, "lifecyclectl": 100} {
		if found[name] < least {
			t.Errorf("only %d commands of %s were found: do the patterns still match?", found[name], name)
		}
	}
}

// missing returns the first word of a command line that names neither a command nor a flag.
func missing(args []string) string {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return args[0]
	}
	if cmd.HasAvailableSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return rest[0]
	}
	cmd.InitDefaultHelpFlag()
	for _, word := range rest {
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case word == "--" || word == "|":
			return ""
		case isFlag && cmd.Flag(name) == nil:
			return word
		}
	}
	return ""
}
