// Command guarantees prints numbered statements of docs/reference/guarantees, with the page
// that has each and the tests that prove it:
//
//	go run ./tools/guarantees          all statements
//	go run ./tools/guarantees R13 k2a  these, with the statements below them (R13a, R13b)
//	go run ./tools/guarantees -sort    sort docs/reference/guarantees/tests.txt
//
// tests.txt names the tests, one statement a line: "R13: TestA TestB". The row of a number
// covers its letters, which may have rows of their own. The tests of this package keep the
// pages, tests.txt and the code in step.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	folder   = "docs/reference/guarantees"
	testFile = folder + "/tests.txt"
)

var (
	statementLine = regexp.MustCompile(`^(?:  )?- \*\*([A-Z])(\d+)([a-z]?)\*\* <a id="([^"]+)"></a>(.+)$`)
	rowLine       = regexp.MustCompile(`^([A-Z])(\d+)([a-z]?):(.*)$`)
	testFunc      = regexp.MustCompile(`^func ((?:Test|Example|Fuzz|Benchmark)\w*)\(`)
)

// number is the name of a statement: R13, or R13a, which belongs to it.
type number struct {
	prefix, letter string
	n              int
}

func (n number) String() string { return n.prefix + strconv.Itoa(n.n) + n.letter }

// parent returns R13 for R13a and for R13.
func (n number) parent() number { return number{prefix: n.prefix, n: n.n} }

func compare(a, b number) int {
	return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.n, b.n), cmp.Compare(a.letter, b.letter))
}

// statement is one line of a page.
type statement struct {
	number
	page, anchor, text string
}

func (s statement) notMet() bool { return strings.Contains(s.text, "Not met") }

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "guarantees:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("guarantees", flag.ContinueOnError)
	sort := flags.Bool("sort", false, "sort "+testFile+", and add a row for each number that has none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := repository()
	if err != nil {
		return err
	}
	all, err := readStatements(root)
	if err != nil {
		return err
	}
	rows, err := readRows(root)
	if err != nil {
		return err
	}
	if *sort {
		return os.WriteFile(filepath.Join(root, testFile), []byte(formatRows(rows, all)), 0o644)
	}
	places, err := testPlaces(root)
	if err != nil {
		return err
	}
	wanted := all
	if flags.NArg() > 0 {
		if wanted, err = find(all, flags.Args()); err != nil {
			return err
		}
	}
	for _, s := range wanted {
		fmt.Fprintf(w, "%s  %s\n     %s#%s\n", s.number, s.text, s.page, s.anchor)
		tests := rows[s.number]
		if tests == nil && !slices.ContainsFunc(wanted, func(o statement) bool { return o.number == s.parent() }) {
			tests = rows[s.parent()] // K2a alone: the row of K2 covers it
		}
		for _, name := range tests {
			fmt.Fprintf(w, "     %s  %s\n", name, strings.Join(places[name], ", "))
		}
		fmt.Fprintln(w)
	}
	return nil
}

// find returns the statements that names name, and those below them.
func find(all []statement, names []string) (found []statement, err error) {
	for _, name := range names {
		before := len(found)
		for _, s := range all {
			if strings.EqualFold(s.String(), name) || strings.EqualFold(s.parent().String(), name) {
				found = append(found, s)
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("there is no statement %s", name)
		}
	}
	return found, nil
}

// repository returns the folder with go.work that has the current one.
func repository() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.work")); err == nil {
			return folder, nil
		}
		if filepath.Dir(folder) == folder {
			return "", errors.New("no go.work here or above: run this in the repository")
		}
		folder = filepath.Dir(folder)
	}
}

// readStatements returns the statements of all pages, in the order of the pages.
func readStatements(root string) (all []statement, err error) {
	pages, err := filepath.Glob(filepath.Join(root, folder, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		name := folder + "/" + filepath.Base(page)
		for line := range strings.Lines(string(text)) {
			m := statementLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if m == nil {
				if strings.HasPrefix(strings.TrimSpace(line), "- **") {
					return nil, fmt.Errorf("%s: not a statement with its anchor: %s", name, line)
				}
				continue
			}
			n, err := strconv.Atoi(m[2])
			if err != nil {
				return nil, err
			}
			all = append(all, statement{
				number: number{prefix: m[1], letter: m[3], n: n},
				page:   name,
				anchor: m[4],
				text:   m[5],
			})
		}
	}
	return all, nil
}

// readRows returns the tests of each statement, as tests.txt names them.
func readRows(root string) (map[number][]string, error) {
	text, err := os.ReadFile(filepath.Join(root, testFile))
	if err != nil {
		return nil, err
	}
	rows := map[number][]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		m := rowLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%s: not \"NUMBER: TESTS\": %s", testFile, line)
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return nil, err
		}
		key := number{prefix: m[1], letter: m[3], n: n}
		if _, twice := rows[key]; twice {
			return nil, fmt.Errorf("%s: %s has two rows", testFile, key)
		}
		rows[key] = strings.Fields(m[4])
	}
	return rows, nil
}

// formatRows returns tests.txt with sorted rows and tests, and with a row for each number.
// It drops nothing.
func formatRows(rows map[number][]string, all []statement) string {
	for _, s := range all {
		if _, ok := rows[s.number]; !ok && s.letter == "" {
			rows[s.number] = nil
		}
	}
	var b strings.Builder
	b.WriteString("# The tests that prove each statement of these pages. \"make docs\" sorts this file.\n")
	for _, n := range slices.SortedFunc(maps.Keys(rows), compare) {
		tests := slices.Compact(slices.Sorted(slices.Values(rows[n])))
		b.WriteString(strings.TrimSuffix(n.String()+": "+strings.Join(tests, " "), " ") + "\n")
	}
	return b.String()
}

// faults returns what is wrong between the statements, their rows and the tests that exist.
func faults(all []statement, rows map[number][]string, places map[string][]string) (found []string) {
	stated := map[number]bool{}
	for _, s := range all {
		stated[s.number] = true
		if len(rows[s.number]) == 0 && s.letter == "" && !s.notMet() {
			found = append(found, s.String()+" names no test and does not say that it is not met")
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(rows), compare) {
		if !stated[n] {
			found = append(found, n.String()+" has a row and no statement")
		}
		for _, name := range rows[n] {
			if places[name] == nil {
				found = append(found, n.String()+" names "+name+", which does not exist")
			}
		}
	}
	return found
}

// testPlaces returns where each test, example, fuzz target and benchmark of the repository
// is declared: FILE:LINE.
func testPlaces(root string) (map[string][]string, error) {
	places := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // tests of other packages make folders and remove them
			return nil
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(strings.NewReader(string(text)))
		lines.Buffer(nil, len(text)+1)
		for n := 1; lines.Scan(); n++ {
			if m := testFunc.FindStringSubmatch(lines.Text()); m != nil {
				places[m[1]] = append(places[m[1]], fmt.Sprintf("%s:%d", filepath.ToSlash(name), n))
			}
		}
		return lines.Err()
	})
	return places, err
}
