package conventions

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Foreign code runs only in internal/call. Elsewhere two things need a reason:
//
//   - a go statement, because a panic on that goroutine ends the process. The
//     reason says why no foreign code runs there. It holds for a file;
//   - errors.Is, errors.As and errors.AsType, because they call the methods of the
//     errors that they look at. The reason says why these are frozen, or not
//     foreign. It holds for a package.
//
// A reason is a line "go FILE: REASON" or "errors FOLDER: REASON", with slashes,
// below the repository's root. Tests need none.
const door = "internal/call"

// crossings returns every place below root that needs a reason, by the key of its
// reason ("go worker/process.go"), with the position of each use.
func crossings(root string) (map[string][]string, error) {
	found := make(map[string][]string)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != root && (base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		below, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		below = filepath.ToSlash(below)
		if path.Dir(below) == door {
			return nil
		}
		files := token.NewFileSet()
		source, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(source, func(n ast.Node) bool {
			key := ""
			switch n := n.(type) {
			case *ast.GoStmt:
				key = "go " + below
			case *ast.SelectorExpr:
				if looksIntoErrors(n) {
					key = "errors " + path.Dir(below)
				}
			}
			if key != "" {
				found[key] = append(found[key], fmt.Sprintf("%s:%d", below, files.Position(n.Pos()).Line))
			}
			return true
		})
		return nil
	})
	return found, err
}

func looksIntoErrors(sel *ast.SelectorExpr) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "errors" && slices.Contains([]string{"Is", "As", "AsType"}, sel.Sel.Name)
}

// readReasons returns the reasons of a list by their key. It skips empty lines
// and lines that begin with "#".
func readReasons(text string) (map[string]string, error) {
	reasons := make(map[string]string)
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, ": ")
		if _, twice := reasons[key]; !ok || twice {
			return nil, fmt.Errorf("line %d: %q is not \"go FILE: REASON\" or \"errors FOLDER: REASON\", or appears twice", n, line)
		}
		reasons[key] = strings.TrimSpace(reason)
	}
	return reasons, lines.Err()
}

// noReason takes the place of a reason in a list that the test wrote, until a
// person writes one.
const noReason = "TODO"

// unreasoned returns the keys that the list lacks, and those that it no longer
// needs.
func unreasoned(found map[string][]string, reasons map[string]string) []string {
	var faults []string
	for key, places := range found {
		if reason := reasons[key]; reason == "" || strings.HasPrefix(reason, noReason) {
			faults = append(faults, fmt.Sprintf("%s: no reason is given for %s: use %s, or say why not", key, strings.Join(places, ", "), door))
		}
	}
	for key := range reasons {
		if len(found[key]) == 0 {
			faults = append(faults, key+": the reason is for a place that no longer exists")
		}
	}
	slices.Sort(faults)
	return faults
}

// writeReasons returns the list for the keys that were found. It keeps the header
// and the existing reasons.
func writeReasons(old string, found map[string][]string, reasons map[string]string) string {
	var out strings.Builder
	for line := range strings.Lines(old) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		out.WriteString(line)
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		reason := reasons[key]
		if reason == "" {
			reason = noReason
		}
		fmt.Fprintf(&out, "%s: %s\n", key, reason)
	}
	return out.String()
}
