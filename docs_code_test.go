package lifecycle_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// showsCode is a place in a page that shows declarations of a file, by their names, or the
// whole file without one. The code block behind it is theirs: TestPagesShowTheCode.
var showsCode = regexp.MustCompile("(?s)(<!-- code: (\\S+)((?: [\\w.]+)*) -->\n```go\n)(.*?)(```\n)")

// showsFile is a place in a page that shows a whole file.
var showsFile = regexp.MustCompile("(?s)(<!-- file: (\\S+) -->\n```\\w+\n)(.*?)(```\n)")

// The code that a page shows is the code that compiles. -update writes the pages.
func TestPagesShowTheCode(t *testing.T) {
	shown := 0
	for _, name := range docPages(t) {
		page := readPage(t, name)
		if n := strings.Count(page, "<!-- code:"); n != len(showsCode.FindAllString(page, -1)) {
			t.Errorf("%s: %d places show code, and one of them does not have the form %s", name, n, showsCode)
		}
		if n := strings.Count(page, "<!-- file:"); n != len(showsFile.FindAllString(page, -1)) {
			t.Errorf("%s: %d places show a file, and one of them does not have the form %s", name, n, showsFile)
		}
		want := showsCode.ReplaceAllStringFunc(page, func(place string) string {
			shown++
			m := showsCode.FindStringSubmatch(place)
			code, err := declarations(m[2], strings.Fields(m[3]))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return place
			}
			return m[1] + code + m[5]
		})
		want = showsFile.ReplaceAllStringFunc(want, func(place string) string {
			m := showsFile.FindStringSubmatch(place)
			return m[1] + readPage(t, m[2]) + m[4]
		})
		if page == want {
			continue
		}
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s does not show the code as it is: run \"make docs\" and commit what it writes", name)
	}
	if shown < 12 {
		t.Errorf("only %d places show code: does the pattern still match?", shown)
	}
}

// declarations returns the named declarations of a file as they stand there, with an
// empty line between them, or all of the file without a name. A method is TYPE.METHOD.
func declarations(file string, names []string) (string, error) {
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return string(text), nil
	}
	fset := gotoken.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	found := map[string]string{}
	for _, d := range parsed.Decls {
		found[nameOf(d)] = string(text[fset.Position(d.Pos()).Offset:fset.Position(d.End()).Offset])
	}
	var parts []string
	for _, name := range names {
		if found[name] == "" {
			return "", fmt.Errorf("%s declares no %s", file, name)
		}
		parts = append(parts, found[name]+"\n")
	}
	return strings.Join(parts, "\n"), nil
}

// nameOf returns the name of a function, TYPE.METHOD for a method, and the first name of
// any other declaration.
func nameOf(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		of := d.Recv.List[0].Type
		if star, ok := of.(*ast.StarExpr); ok {
			of = star.X
		}
		if id, ok := of.(*ast.Ident); ok {
			return id.Name + "." + d.Name.Name
		}
	case *ast.GenDecl:
		if spec, ok := d.Specs[0].(*ast.TypeSpec); ok {
			return spec.Name.Name
		}
	}
	return ""
}

// docPages returns the README, the pages beside it and the pages below docs.
func docPages(t *testing.T) (pages []string) {
	t.Helper()
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir("docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			pages = append(pages, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(pages)
	return pages
}
