// Package conventions turns the conventions of this repository into tests: which package
// may import which, which modules that brings to its build, that every package has a doc
// comment, and that every tested package looks for leaked goroutines. Each module has a deps_test.go
// with its table; begin with [Check].
//
// # Nil
//
// A nil worker, drainer, probe or function is an error that says so. call.IsNil
// decides: an interface that holds a nil pointer is nil too.
//
// A nil option is an error that gives its position, "option 2 is nil". When the
// function that takes the option returns no error, as worker.NewFunc, the first
// method that can return one does: Start or Run. TestNilOptions has a row for
// every option type of the root module.
package conventions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Repo is the module path of the repository's root. An import that a table
// writes as "./fsm" is Repo's package fsm, and "." is the root package.
const Repo = "github.com/pleme-io/lifecycle-go"

// Module says what one module of the repository may import.
type Module struct {
	// Rooms are its packages. Every package must be in one; the first room
	// whose Path covers it counts.
	Rooms []Room
}

// Room is one row of the import table.
type Room struct {
	// Path is the package's folder below the module, "." for the module's own.
	// "internal/..." covers internal and everything below it.
	Path string
	// Imports lists what its packages may import besides the standard library on Linux,
	// macOS and Windows, except in tests: "./fsm" is this repository's package fsm,
	// "./internal/..." everything below internal, and "golang.org/x/sync" that module
	// with its packages.
	Imports []string
	// Brings lists further modules that these imports may add to the build. "..."
	// means all.
	Brings []string
	// Never lists modules that must not be in the build, not even indirectly.
	Never []string
}

// Check fails t for everything in the module of the current folder that the table does not
// allow. go test runs a test in its package's folder, so a deps_test.go beside the go.mod
// calls it.
func Check(t *testing.T, m Module) {
	t.Helper()
	faults, err := inspect(Repo, ".", m)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

// platforms are those whose builds are checked.
var platforms = []string{"linux", "darwin", "windows"}

// inspect returns the faults of the module in dir, one sentence each, sorted. The
// error says why it could not read the module.
func inspect(repo, dir string, m Module) (faults []string, err error) {
	var mod struct {
		Module struct{ Path string }
	}
	// The test cache notices the files that a test opens, but not the files that its commands open.
	if _, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil {
		return nil, err
	}
	text, err := goCommand(dir, "", "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		return nil, err
	}
	t := table{repo: repo, module: mod.Module.Path, rooms: m.Rooms}
	for _, platform := range platforms {
		packages, err := readPackages(dir, platform)
		if err != nil {
			return nil, err
		}
		more, err := t.check(packages, platform)
		if err != nil {
			return nil, err
		}
		faults = append(faults, more...)
	}
	slices.Sort(faults)
	return slices.Compact(faults), nil
}

// pkg is one package that "go list -deps" names.
type pkg struct {
	ImportPath, Name, Dir, Doc string
	Standard, DepOnly          bool
	Module                     *struct{ Path string }
	GoFiles, CgoFiles          []string
	TestGoFiles, XTestGoFiles  []string
	Imports                    []string
	Error                      *struct{ Err string }
}

// readPackages returns the packages of the module and everything that they need on a
// platform, by import path. It reads the module alone, without the workspace, because that
// is what an importer of the module gets.
func readPackages(dir, platform string) (map[string]pkg, error) {
	const fields = "ImportPath,Name,Dir,Doc,Standard,DepOnly,Module,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,Imports,Error"
	out, err := goCommand(dir, platform, "list", "-e", "-deps", "-json="+fields, "./...")
	if err != nil {
		return nil, err
	}
	packages := make(map[string]pkg)
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list in %s: %w", dir, err)
		}
		noFiles := func(text string) bool {
			return strings.Contains(text, "no non-test Go files") || strings.Contains(text, "build constraints exclude all")
		}
		if p.Error != nil && !noFiles(p.Error.Err) {
			return nil, fmt.Errorf("go list of %s in %s: %s", p.ImportPath, dir, p.Error.Err)
		}
		packages[p.ImportPath] = p
	}
}

func goCommand(dir, platform string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "PWD=") // PWD would override Dir
	if platform != "" {
		cmd.Env = append(cmd.Env, "GOOS="+platform)
	}
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
