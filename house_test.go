package lifecycle_test

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// api.txt lists the exported names of the root package, so that a review sees
// each change. -update writes the file.
func TestExportedNamesAreKnown(t *testing.T) {
	out, err := exec.Command("go", "doc", "-short", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("api.txt", out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(want) {
		t.Errorf("the exported names are not those of api.txt; if the change is intended: go test -run %s . -update\n%s", t.Name(), out)
	}
}

const modulePath = "github.com/pleme-io/lifecycle-go"

// An exported type that is the alias of an internal one shows no fields on pkg.go.dev: its
// comment names each of them.
func TestAliasesOfInternalTypesNameTheirFields(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(folder string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		switch entry.Name() {
		case ".git", "internal", "testdata", "node_modules", "bench", "examples", "tools":
			return filepath.SkipDir
		}
		for name, d := range typesIn(t, folder) {
			if !d.spec.Assign.IsValid() || !ast.IsExported(name) {
				continue
			}
			of, isInternal := aliased(t, d)
			if !isInternal {
				continue
			}
			found++
			for _, field := range fieldsOf(of) {
				if !regexp.MustCompile(`\b` + field + `\b`).MatchString(d.doc) {
					t.Errorf("%s: the comment of %s does not name its field %s", folder, name, field)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 5 {
		t.Errorf("only %d aliases were found: does the test still look?", found)
	}
}

// declared is a type, with its comment and the imports of its file by name.
type declared struct {
	spec    *ast.TypeSpec
	doc     string
	imports map[string]string
}

// typesIn returns the types of a folder by name.
func typesIn(t *testing.T, folder string) map[string]declared {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]declared{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		imports := map[string]string{}
		for _, i := range file.Imports {
			of, _ := strconv.Unquote(i.Path.Value)
			imports[path.Base(of)] = of
		}
		for _, d := range file.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					all[spec.Name.Name] = declared{spec, gen.Doc.Text() + spec.Doc.Text(), imports}
				}
			}
		}
	}
	return all
}

// aliased returns the type for which an alias stands, and whether it is an internal one.
func aliased(t *testing.T, d declared) (of ast.Expr, isInternal bool) {
	for d.spec.Assign.IsValid() {
		expr := d.spec.Type
		if generic, ok := expr.(*ast.IndexExpr); ok {
			expr = generic.X
		}
		selector, ok := expr.(*ast.SelectorExpr)
		if !ok {
			return nil, false
		}
		of, isOurs := strings.CutPrefix(d.imports[selector.X.(*ast.Ident).Name], modulePath+"/")
		if !isOurs {
			return nil, false
		}
		isInternal = strings.Contains("/"+of+"/", "/internal/")
		if d, ok = typesIn(t, filepath.FromSlash(of))[selector.Sel.Name]; !ok {
			return nil, false
		}
	}
	return d.spec.Type, isInternal
}

// fieldsOf returns the exported fields of a struct.
func fieldsOf(of ast.Expr) (names []string) {
	s, ok := of.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, field := range s.Fields.List {
		for _, name := range field.Names {
			if name.IsExported() {
				names = append(names, name.Name)
			}
		}
	}
	return names
}
