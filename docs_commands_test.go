package lifecycle_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a command line that a page tells its reader to run.
type command struct {
	page, line string
	words      []string
}

// commandPages are the pages with commands for strangers.
func commandPages(t *testing.T) []string {
	history := func(page string) bool { return page == "CHANGELOG.md" || strings.HasPrefix(page, "docs/adr/") }
	return append(slices.DeleteFunc(docPages(t), history), "deploy/README.md", "deploy/e2e/README.md")
}

var (
	shellBlock = regexp.MustCompile("(?s)```(?:sh|console)?\n(.*?)\n```")
	shellSpan  = regexp.MustCompile("`((?:go (?:run|get|install|test)|make|bash|lifecyclectl|curl|docker|kubectl|helm|kustomize) [^`\n]+)`")
	// before a comment in a block: two spaces, as in "make test  # all tests"
	shellComment = regexp.MustCompile(`\s{2,}#.*$`)
)

// commandsOf returns the commands of a page: those in blocks of sh, in blocks of no
// language that begin with a program, and in code spans.
func commandsOf(t *testing.T, page string) (all []command) {
	text := readPage(t, page)
	var lines []string
	for _, m := range shellBlock.FindAllStringSubmatch(text, -1) {
		for line := range strings.SplitSeq(strings.ReplaceAll(m[1], "\\\n", " "), "\n") {
			line = strings.TrimSpace(shellComment.ReplaceAllString(strings.TrimPrefix(line, "$ "), ""))
			if strings.HasPrefix(m[0], "```\n") && !isProgram(line) {
				continue // output
			}
			lines = append(lines, line)
		}
	}
	for _, m := range shellSpan.FindAllStringSubmatch(text, -1) {
		lines = append(lines, m[1])
	}
	for _, line := range lines {
		for part := range strings.SplitSeq(strings.ReplaceAll(line, "&&", "|"), "|") {
			words := strings.Fields(strings.NewReplacer("'", "", `"`, "", "<(", " ", ")", " ").Replace(part))
			for len(words) > 0 && strings.Contains(words[0], "=") { // a variable before the command
				words = words[1:]
			}
			if len(words) > 0 && !strings.HasPrefix(words[0], "#") {
				all = append(all, command{page, strings.TrimSpace(part), words})
			}
		}
	}
	return all
}

func isProgram(line string) bool {
	word, _, _ := strings.Cut(line, " ")
	_, known := programs[word]
	return known && strings.Contains(line, " ")
}

// programs checks the arguments of each program. nil is a program whose arguments are not
// of this repository.
var programs = map[string]func(t *testing.T, c command){
	"go": goCommand, "make": makeCommand, "bash": fileCommand, "curl": curlCommand, "lifecyclectl": lifecyclectlCommand,
	"docker": pathCommand, "kubectl": pathCommand, "helm": pathCommand, "kustomize": pathCommand, "cd": fileCommand, "promtool": pathCommand,
	"sed": nil, "sudo": nil, "apt-get": nil, "xcode-select": nil, "source": nil, "export": nil, "git": nil, "jq": nil, "lifecycle-vet": nil,
}

// A command that a page prints names programs, targets, packages, files, paths and flags
// that exist.
func TestCommandsOfPagesExist(t *testing.T) {
	found := map[string]int{}
	for _, page := range commandPages(t) {
		for _, c := range commandsOf(t, page) {
			name := c.words[0]
			if strings.HasPrefix(name, "./") || strings.HasPrefix(name, "deploy/") {
				fileCommand(t, command{c.page, c.line, append([]string{"bash"}, c.words...)})
				continue
			}
			check, known := programs[name]
			if !known {
				t.Errorf("%s tells its reader to run %q: add %s to the programs of this test", c.page, c.line, name)
				continue
			}
			found[name]++
			if check != nil {
				check(t, c)
			}
		}
	}
	for name, least := range map[string]int{"go": 10, "make": 8, "curl": 5, "lifecyclectl": 5} {
		if found[name] < least {
			t.Errorf("only %d commands of %s were found: do the patterns still match?", found[name], name)
		}
	}
}

const ownPath = "github.com/pleme-io/lifecycle-go"

func goCommand(t *testing.T, c command) {
	t.Helper()
	for _, arg := range c.words[2:] {
		var folder string
		switch {
		case strings.HasPrefix(arg, "./"):
			folder = strings.TrimSuffix(arg, "/...")
		case strings.HasPrefix(arg, ownPath):
			path, _, _ := strings.Cut(strings.TrimPrefix(arg, ownPath), "@")
			folder = "." + path
		case c.words[1] == "run" && !strings.HasPrefix(arg, "-"):
			return // an argument of the program
		default:
			continue
		}
		if strings.HasPrefix(c.line, "go test ./workflow") {
			folder = "fleet/workflow" // behind "cd fleet"
		}
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(folder), "*.go"))
		if err != nil || len(files) == 0 && folder != "./deploy" {
			t.Errorf("%s: %q: no package in %s", c.page, c.line, folder)
			continue
		}
		program := slices.ContainsFunc(files, func(file string) bool { return strings.Contains(readPage(t, file), "\npackage main\n") })
		if (c.words[1] == "run" || c.words[1] == "install") && !program {
			t.Errorf("%s: %q: %s is no program", c.page, c.line, folder)
		}
		if c.words[1] == "run" {
			return // what is behind it are arguments of the program
		}
	}
}

// makeCommand asks make itself what it would do, which runs nothing.
func makeCommand(t *testing.T, c command) {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make")
	}
	makefile := readPage(t, "Makefile")
	for _, arg := range c.words[1:] {
		if strings.Contains(arg, "=") || strings.HasPrefix(arg, "-") {
			continue
		}
		if !strings.Contains("\n"+makefile, "\n"+arg+":") {
			t.Errorf("%s: %q: the Makefile has no target %s", c.page, c.line, arg)
		}
	}
}

func fileCommand(t *testing.T, c command) {
	t.Helper()
	if _, err := os.Stat(filepath.FromSlash(c.words[1])); err != nil {
		t.Errorf("%s: %q: %v", c.page, c.line, err)
	}
}

// pathCommand checks arguments that look like files of this repository.
func pathCommand(t *testing.T, c command) {
	t.Helper()
	own := regexp.MustCompile(`^(deploy|examples|docs|vet|config|bench)/`)
	for _, arg := range c.words[1:] {
		_, value, ok := strings.Cut(arg, "=")
		if !ok {
			value = arg
		}
		if !own.MatchString(value) {
			continue
		}
		if _, err := os.Stat(filepath.FromSlash(value)); err != nil {
			t.Errorf("%s: %q: %v", c.page, c.line, err)
		}
	}
}

// curlCommand checks that a server of this repository has the path.
func curlCommand(t *testing.T, c command) {
	t.Helper()
	served := readPage(t, "examples/service/routes.go") + readPage(t, "health/http.go") + readPage(t, "health.go") + readPage(t, "health/registry.go")
	for _, arg := range c.words[1:] {
		_, rest, ok := strings.Cut(strings.TrimPrefix(arg, "http://"), ":808")
		if !ok {
			continue
		}
		_, path, _ := strings.Cut(rest, "/")
		path, _, _ = strings.Cut("/"+path, "?")
		if path == "/metrics" {
			path = `"/metrics"`
			served += readPage(t, "app.go")
		}
		if !strings.Contains(served, path) {
			t.Errorf("%s: %q: no server has the path %s", c.page, c.line, path)
		}
	}
}

// lifecyclectlCommand checks the command and its flags against the reference, which the
// program writes.
func lifecyclectlCommand(t *testing.T, c command) {
	t.Helper()
	reference := readPage(t, "docs/lifecyclectl.md")
	if len(c.words) > 1 && !slices.Contains([]string{"completion", "help"}, c.words[1]) {
		heading := "\n### lifecyclectl " + c.words[1]
		if !strings.Contains(reference, heading+"\n") && !strings.Contains(reference, heading+" ") {
			t.Errorf("%s: %q: lifecyclectl has no command %s", c.page, c.line, c.words[1])
		}
	}
	for _, word := range c.words[1:] {
		if word == "--" {
			break
		}
		flag, _, _ := strings.Cut(word, "=")
		if strings.HasPrefix(flag, "--") && !strings.Contains(reference, "`"+flag) && !strings.Contains(reference, flag+" ") && !strings.Contains(reference, flag+"`") {
			t.Errorf("%s: %q: lifecyclectl has no flag %s", c.page, c.line, flag)
		}
	}
}
