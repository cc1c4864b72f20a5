package lifecycle_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/reference/guarantees/README.md states what is guaranteed, one statement a line.
// docs/reference/guarantees/details.md has the details of a statement, such as R13a, and
// docs/reference/guarantees/tests.md names the tests. These tests keep the three in step;
// "make docs" sorts and formats the last one.

var update = flag.Bool("update", false, "write docs/reference/guarantees/tests.md anew")

const (
	contractPage = "docs/reference/guarantees/README.md"
	detailsPage  = "docs/reference/guarantees/details.md"
	testsPage    = "docs/reference/guarantees/tests.md"
)

var (
	statementLine = regexp.MustCompile(`^- \*\*([A-Z])(\d+)([a-z]?)\*\* (.+)\n`)
	tableRow      = regexp.MustCompile(`^\| (.+) \| (.*) \|\n`)
	statementID   = regexp.MustCompile(`^[A-Z]\d+[a-z]?$`)
	testName      = regexp.MustCompile(`^(?:Test|Example|Fuzz|Benchmark)\w+$`)
	testFunc      = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz|Benchmark)\w*)\(`)
)

// statement is one line of the contract: R13, or R13a, which is a detail of it.
type statement struct {
	prefix, letter string
	number         int
	text           string
}

func (s statement) id() string { return s.prefix + strconv.Itoa(s.number) + s.letter }

func readStatements(t *testing.T) []statement {
	t.Helper()
	var all []statement
	for _, page := range []string{contractPage, detailsPage} {
		for line := range strings.Lines(readPage(t, page)) {
			m := statementLine.FindStringSubmatch(line)
			if m == nil {
				if strings.HasPrefix(line, "- **") {
					t.Errorf("%s: not a statement: %s", page, line)
				}
				continue
			}
			number, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			if detail := m[3] != ""; detail != (page == detailsPage) {
				t.Errorf("%s: %s%s%s: a number stands in %s and its letters in %s", page, m[1], m[2], m[3], contractPage, detailsPage)
			}
			all = append(all, statement{prefix: m[1], number: number, letter: m[3], text: m[4]})
		}
	}
	return all
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// No number is missing or appears twice. The letters of a number begin with a and
// leave none out.
func TestContractHasEveryNumber(t *testing.T) {
	statements := readStatements(t)
	numbers := map[string][]int{}
	letter := map[string]string{} // the next letter of each statement
	for _, s := range statements {
		parent := s.prefix + strconv.Itoa(s.number)
		if s.letter == "" {
			numbers[s.prefix] = append(numbers[s.prefix], s.number)
			letter[parent] = "a"
			continue
		}
		if letter[parent] != s.letter {
			t.Errorf("%s: the letter here should be %q", s.id(), letter[parent])
		}
		letter[parent] = string(s.letter[0] + 1)
	}
	total := 0
	for prefix, have := range numbers {
		slices.Sort(have)
		for i, n := range have {
			if n != i+1 {
				t.Errorf("%s%d is missing or appears twice", prefix, i+1)
				break
			}
		}
		total += len(have)
	}
	if total < 102 {
		t.Errorf("%d numbered statements, of 102: a guarantee was lost", total)
	}
}

// Every numbered statement has a row with tests, every row has a statement, and
// every test exists. The row of a number covers its lettered statements too; they
// may have rows of their own.
func TestContractNamesTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	wanted := map[string]bool{}
	notMet := map[string]bool{}
	for _, s := range readStatements(t) {
		wanted[s.id()] = true
		notMet[s.id()] = strings.Contains(s.text, "Not met")
	}
	rows := map[string]bool{}
	for line := range strings.Lines(readPage(t, testsPage)) {
		subject, tests, ok := parseRow(line)
		if !ok {
			continue
		}
		if statementID.MatchString(subject) {
			if rows[subject] {
				t.Errorf("%s has two rows", subject)
			}
			if !wanted[subject] {
				t.Errorf("%s has a row in %s and no statement in %s", subject, testsPage, contractPage)
			}
			rows[subject] = true
		}
		if len(tests) == 0 && !notMet[subject] {
			t.Errorf("%s names no test and does not say that it is not met", subject)
		}
		for _, name := range tests {
			if !testName.MatchString(name) || !declared[name] {
				t.Errorf("%s names %q, which does not exist", subject, name)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		lettered := id[len(id)-1] >= 'a'
		if !rows[id] && !lettered {
			t.Errorf("%s has no row in %s", id, testsPage)
		}
	}
}

// parseRow splits a row of a table into the statement and its tests. ok is false
// for a heading, the line under a heading, and text.
func parseRow(line string) (subject string, tests []string, ok bool) {
	m := tableRow.FindStringSubmatch(line)
	if m == nil || m[2] == "tests" || strings.HasPrefix(m[1], "---") {
		return "", nil, false
	}
	for name := range strings.SplitSeq(m[2], ",") {
		if name = strings.Trim(name, " `"); name != "" {
			tests = append(tests, name)
		}
	}
	return m[1], tests, true
}

// declaredTests returns the names of the tests, examples, fuzz targets and
// benchmarks of every module of the repository.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // tests of other packages make folders and remove them
			return nil
		case err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return filepath.SkipDir
		case err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(src, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return declared
}

// Rows are sorted by the contract's numbers, and the tests of a row by name. With
// -update the test writes the page in this order.
func TestContractTestsAreCurrent(t *testing.T) {
	page := readPage(t, testsPage)
	want := formatTests(page, readStatements(t))
	if want == page {
		return
	}
	if !*update {
		t.Fatalf(`%s is not sorted or lacks a row: run "make docs"`, testsPage)
	}
	if err := os.WriteFile(testsPage, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// formatTests sorts the rows of statements and the tests of every row, and adds
// an empty row for a numbered statement that has none. It drops nothing.
func formatTests(page string, statements []statement) string {
	var prefixes []string
	rows := map[string][]string{}
	for _, s := range statements {
		if !slices.Contains(prefixes, s.prefix) {
			prefixes = append(prefixes, s.prefix)
		}
		if s.letter == "" {
			rows[s.id()] = nil
		}
	}
	var before, after strings.Builder // the text before and after the rows of statements
	out, found := &before, false
	for line := range strings.Lines(page) {
		subject, tests, ok := parseRow(line)
		slices.Sort(tests)
		tests = slices.Compact(tests)
		switch {
		case ok && statementID.MatchString(subject):
			rows[subject] = slices.Compact(slices.Sorted(slices.Values(append(rows[subject], tests...))))
			out, found = &after, true
		case ok:
			fmt.Fprintf(out, "| %s | %s |\n", subject, strings.Join(tests, ", "))
		default:
			out.WriteString(line)
		}
	}
	if !found {
		return page // without rows there is no place for them
	}
	place := func(id string) (int, int, string) {
		digits := strings.TrimRight(id[1:], "abcdefghijklmnopqrstuvwxyz")
		number, _ := strconv.Atoi(digits)
		return slices.Index(prefixes, id[:1]), number, id[1+len(digits):]
	}
	ids := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
		pa, na, la := place(a)
		pb, nb, lb := place(b)
		return cmp.Or(cmp.Compare(pa, pb), cmp.Compare(na, nb), cmp.Compare(la, lb))
	})
	for _, id := range ids {
		fmt.Fprintf(&before, "| %s | %s |\n", id, strings.Join(rows[id], ", "))
	}
	return before.String() + after.String()
}
