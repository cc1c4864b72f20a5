package conventions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// pkg is one folder with Go files, read from its source without regard to build
// constraints, so that it includes the imports for other platforms.
type pkg struct {
	path        string // import path
	folder      string // below the module, slashes, "." for the module's own
	name        string
	doc         string
	files       []file // without tests
	tests       int    // test files, deps_test.go not counted
	leakChecked bool
}

// file is one source file and what it imports.
type file struct {
	name    string
	imports []string
}

// readPackages returns every package of the module in dir.
func readPackages(dir, module string) ([]pkg, error) {
	var packages []pkg
	err := folders(dir, func(folder string) error {
		below, err := filepath.Rel(dir, folder)
		if err != nil {
			return err
		}
		below = filepath.ToSlash(below)
		p := pkg{path: path.Join(module, below), folder: below}
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() || !strings.HasSuffix(e.Name(), ".go") || strings.HasPrefix(e.Name(), "_") || strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if err := p.read(filepath.Join(folder, e.Name())); err != nil {
				return err
			}
		}
		if len(p.files) > 0 || p.tests > 0 {
			packages = append(packages, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the packages of %s: %w", module, err)
	}
	return packages, nil
}

func (p *pkg) read(name string) error {
	source, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, "_test.go") {
		if filepath.Base(name) != "deps_test.go" {
			p.tests++
		}
		p.leakChecked = p.leakChecked || checksLeaks(source)
		return nil
	}
	if ignored(source) {
		return nil
	}
	p.name = source.Name.Name
	if source.Doc != nil && p.doc == "" {
		p.doc = strings.TrimSpace(source.Doc.Text())
	}
	f := file{name: path.Join(p.folder, filepath.Base(name))}
	for _, spec := range source.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		f.imports = append(f.imports, imported)
	}
	p.files = append(p.files, f)
	return nil
}

// ignored reports whether the build constraint "ignore" excludes the file from
// every build.
func ignored(source *ast.File) bool {
	for _, group := range source.Comments {
		if group.Pos() > source.Package {
			break
		}
		for _, c := range group.List {
			if strings.TrimSpace(c.Text) == "//go:build ignore" {
				return true
			}
		}
	}
	return false
}

// checksLeaks reports whether the file has a TestMain that calls goleak.
func checksLeaks(source *ast.File) bool {
	found := false
	for _, decl := range source.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "TestMain" || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "goleak" {
					found = true
				}
			}
			return !found
		})
	}
	return found
}

// modFile is what "go mod edit -json" prints of a go.mod.
type modFile struct {
	Path    string `json:"-"`
	Module  struct{ Path string }
	Require []struct {
		Path     string
		Indirect bool
	}
	Replace []struct {
		Old, New struct{ Path string }
	}
}

func readModule(dir string) (modFile, error) {
	var mod modFile
	// Read it for the test cache as well: it notices the files that the test
	// itself opened, not those of the command.
	if _, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil {
		return mod, err
	}
	out, err := goCommand(dir, "mod", "edit", "-json")
	if err != nil {
		return mod, err
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return mod, fmt.Errorf("read go.mod in %s: %w", dir, err)
	}
	mod.Path = mod.Module.Path
	return mod, nil
}

// build is one package that "go list -deps" names.
type build struct {
	ImportPath string
	Standard   bool
	DepOnly    bool
	Module     *struct{ Path string }
	Imports    []string
	Error      *struct{ Err string }
}

// readBuilds returns the packages of the module and everything they need,
// tests excepted, by import path. It asks for the module alone, without the
// workspace, because that is what an importer of the module gets.
func readBuilds(dir string) (map[string]build, error) {
	out, err := goCommand(dir, "list", "-e", "-deps", "-json=ImportPath,Standard,DepOnly,Module,Imports,Error", "./...")
	if err != nil {
		return nil, err
	}
	builds := make(map[string]build)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var b build
		if err := dec.Decode(&b); errors.Is(err, io.EOF) {
			return builds, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list in %s: %w", dir, err)
		}
		if b.Error != nil && !strings.Contains(b.Error.Err, "no non-test Go files") {
			return nil, fmt.Errorf("go list of %s in %s: %s", b.ImportPath, dir, b.Error.Err)
		}
		builds[b.ImportPath] = b
	}
}

func goCommand(dir string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "PWD=") // PWD would override Dir
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
