package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house returns what the repository has: its root, its statements, and the tests that they name.
func house(t *testing.T) (root string, all []statement, rows map[number][]string) {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if all, err = readStatements(root); err != nil {
		t.Fatal(err)
	}
	if rows, err = readRows(root); err != nil {
		t.Fatal(err)
	}
	return root, all, rows
}

// No number is missing or appears twice, and each has its own anchor. The letters of a
// number follow it, begin with a and leave none out. A prefix has one page.
func TestEveryNumberStandsOnItsPage(t *testing.T) {
	_, all, _ := house(t)
	seen := map[number]bool{}
	last := map[string]int{} // the highest number of each prefix
	pages := map[string]string{}
	var before number
	for _, s := range all {
		if seen[s.number] {
			t.Errorf("%s appears twice", s.number)
		}
		seen[s.number] = true
		if s.anchor != strings.ToLower(s.String()) {
			t.Errorf("%s has the anchor %q", s.number, s.anchor)
		}
		if page := pages[s.prefix]; page != "" && page != s.page {
			t.Errorf("%s stands in %s, and other statements of %s in %s", s.number, s.page, s.prefix, page)
		}
		pages[s.prefix] = s.page
		if s.letter != "" {
			next := "a"
			if before.letter != "" {
				next = string(before.letter[0] + 1)
			}
			if before.parent() != s.parent() || s.letter != next {
				t.Errorf("%s stands behind %s", s.number, before)
			}
		}
		before = s.number
		last[s.prefix] = max(last[s.prefix], s.n)
	}
	for prefix, n := range last {
		for i := range n {
			if one := (number{prefix: prefix, n: i + 1}); !seen[one] {
				t.Errorf("%s is missing: a number never goes away", one)
			}
		}
	}
	for _, prefix := range []string{"R", "W", "P", "D", "H", "K", "O"} {
		if last[prefix] == 0 {
			t.Errorf("no statement has the prefix %s", prefix)
		}
	}
}

// Every number has tests, or says that it is not met. Every test exists, and every row has
// its statement.
func TestEveryStatementHasTests(t *testing.T) {
	root, all, rows := house(t)
	places, err := testPlaces(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults(all, rows, places) {
		t.Error(fault)
	}
}

// The check finds a statement without tests, a test that does not exist, and a row without
// a statement.
func TestCheckFindsWhatIsMissing(t *testing.T) {
	all := []statement{
		{number: number{prefix: "R", n: 1}},
		{number: number{prefix: "R", n: 2}, text: "Not met: yet."},
		{number: number{prefix: "R", n: 3}},
		{number: number{prefix: "R", n: 3, letter: "a"}},
	}
	rows := map[number][]string{
		{prefix: "R", n: 3}: {"TestGone"},
		{prefix: "R", n: 4}: {"TestHere"},
	}
	got := strings.Join(faults(all, rows, map[string][]string{"TestHere": {"a_test.go:1"}}), "\n")
	want := "R1 names no test and does not say that it is not met\nR3 names TestGone, which does not exist\nR4 has a row and no statement"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// tests.txt is sorted; make docs writes it.
func TestRowsAreSorted(t *testing.T) {
	root, all, rows := house(t)
	text, err := os.ReadFile(filepath.Join(root, testFile))
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != formatRows(rows, all) {
		t.Errorf(`%s is not sorted or lacks a row: run "make docs"`, testFile)
	}
}

// The tests that docs/internals/models.md names exist.
func TestFaultsOfTheModelsNameTestsThatExist(t *testing.T) {
	root, _, _ := house(t)
	places, err := testPlaces(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/internals/models.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:Test|Example|Fuzz|Benchmark)[A-Z]\w*`).FindAllString(string(text), -1)
	if len(named) == 0 {
		t.Error("no test is named: does the pattern still match?")
	}
	for _, name := range named {
		if places[name] == nil {
			t.Errorf("%s does not exist", name)
		}
	}
}

// A statement is printed with its letters, its page and its tests.
func TestPrint(t *testing.T) {
	var b strings.Builder
	if err := run([]string{"r1"}, &b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"R1  Run installs its signal handlers",
		"R1a  A signal during the start",
		"docs/reference/guarantees/app.md#r1\n",
		"TestHandlersAreInstalledBeforeAnyUserCodeOfRun  signal_process_test.go:",
	} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is missing in\n%s", part, b.String())
		}
	}
	if strings.Contains(b.String(), "\nR10 ") {
		t.Error("R10 is printed for R1")
	}
	if err := run([]string{"R999"}, &b); err == nil || !strings.Contains(err.Error(), "R999") {
		t.Errorf("R999: %v", err)
	}
}
