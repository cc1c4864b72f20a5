// Package conventions turns the conventions of this repository into tests: which
// package may import which, what a go.mod may require, that every package has a
// doc comment, that every tested package looks for leaked goroutines, and where
// code may start goroutines and look into errors.
//
// Each module has a deps_test.go with its own table, which calls [Check].
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
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Repo is the module path of the repository's root. An import that a table
// writes as "./fsm" is Repo's package fsm, and "." is the root package.
const Repo = "github.com/pleme-io/lifecycle-go"

// Module says what one module of the repository may import and require.
type Module struct {
	// Rooms are its packages. Every package must be in one; the first room
	// whose Path covers it counts.
	Rooms []Room
	// Requires are the modules that its go.mod may require directly.
	Requires []Require
}

// Room is one row of the import table.
type Room struct {
	// Path is the package's folder below the module, "." for the module's own.
	// "internal/..." covers internal and everything below it.
	Path string
	// Imports lists what its packages may import besides the standard library, in
	// files for any platform, except tests: "./fsm" is this repository's package
	// fsm, "./internal/..." everything below internal, and "golang.org/x/sync"
	// that module with its packages.
	Imports []string
	// Brings lists further modules that these imports may add to the build. "..."
	// means all.
	Brings []string
	// Never lists modules that must not be in the build, not even indirectly.
	Never []string
}

// Require is one module that a go.mod may require.
type Require struct {
	Module string
	// TestOnly says that packages may need the module only in tests.
	TestOnly bool
}

// Check fails t for everything in the module of the current folder that the
// table does not allow. go test runs a test in its package's folder, so a
// deps_test.go beside go.mod need not say where it is.
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

// inspect returns the faults of the module in dir, one sentence each, sorted. The
// error says why it could not read the module.
func inspect(repo, dir string, m Module) ([]string, error) {
	mod, err := readModule(dir)
	if err != nil {
		return nil, err
	}
	packages, err := readPackages(dir, mod.Path)
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("module %s in %s: no packages: is this the folder of a go.mod?", mod.Path, dir)
	}
	table := table{repo: repo, module: mod.Path, rooms: m.Rooms}
	faults := slices.Concat(
		table.imports(packages),
		requirements(repo, dir, mod, m.Requires),
		documented(packages),
		leakChecked(packages),
	)
	builds, err := readBuilds(dir)
	switch {
	case err == nil:
		faults = append(faults, table.builds(builds, m.Requires)...)
	case len(faults) == 0:
		return nil, err
	default: // the faults found so far are the likely reason
		faults = append(faults, err.Error())
	}
	slices.Sort(faults)
	return slices.Compact(faults), nil
}

// documented requires a doc comment for every package.
func documented(packages []pkg) []string {
	var faults []string
	for _, p := range packages {
		switch {
		case len(p.files) == 0: // only tests
		case p.doc == "":
			faults = append(faults, fmt.Sprintf("package %s has no doc comment: say above its package clause what it is", p.path))
		case p.name != "main" && !strings.HasPrefix(p.doc, "Package "+p.name+" "):
			faults = append(faults, fmt.Sprintf("the doc comment of package %s must begin with %q", p.path, "Package "+p.name+" "))
		}
	}
	return faults
}

// leakChecked requires goleak in the TestMain of every package with tests other
// than deps_test.go.
func leakChecked(packages []pkg) []string {
	var faults []string
	for _, p := range packages {
		if p.tests > 0 && !p.leakChecked {
			faults = append(faults, fmt.Sprintf("package %s has tests and no TestMain that calls goleak.VerifyTestMain: goroutines that it leaks would go unseen", p.path))
		}
	}
	return faults
}

// requirements checks go.mod against what the module may require.
func requirements(repo, dir string, mod modFile, allowed []Require) []string {
	var faults []string
	for _, r := range mod.Require {
		if r.Indirect || slices.ContainsFunc(allowed, func(a Require) bool { return a.Module == r.Path }) {
			continue
		}
		names := make([]string, len(allowed))
		for i, a := range allowed {
			names[i] = a.Module
		}
		faults = append(faults, fmt.Sprintf("go.mod of %s requires %s: it may require only %s", mod.Path, r.Path, list(names)))
	}
	for _, r := range mod.Require {
		if r.Path != repo && !strings.HasPrefix(r.Path, repo+"/") {
			continue
		}
		// Nothing is released yet: without the replacement the module would
		// build against a version that does not exist, or an old one.
		if err := replaced(dir, mod, repo, r.Path); err != nil {
			faults = append(faults, fmt.Sprintf("go.mod of %s requires %s: %v", mod.Path, r.Path, err))
		}
	}
	return faults
}

// replaced reports whether mod replaces module by that module's folder in this
// repository.
func replaced(dir string, mod modFile, repo, module string) error {
	for _, r := range mod.Replace {
		if r.Old.Path != module {
			continue
		}
		target, err := readModule(filepath.Join(dir, r.New.Path))
		if err != nil {
			return fmt.Errorf("its replacement %s: %w", r.New.Path, err)
		}
		if target.Path != module {
			return fmt.Errorf("its replacement %s is %s", r.New.Path, target.Path)
		}
		return nil
	}
	below := strings.TrimPrefix(strings.TrimPrefix(module, repo), "/")
	return fmt.Errorf("until the first release it also needs \"replace %s => FOLDER\", the path from here to the repository's folder %q", module, path.Join(".", below))
}

// list joins names in the way that people do: "a, b and c".
func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// folders calls visit with every folder of the module in dir that the go command
// uses: none of another module, no testdata, and no hidden one.
func folders(dir string, visit func(folder string) error) error {
	return filepath.WalkDir(dir, func(folder string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if folder != dir {
			name := d.Name()
			if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
				return filepath.SkipDir
			}
			_, err := os.Stat(filepath.Join(folder, "go.mod"))
			if err == nil {
				return filepath.SkipDir
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return visit(folder)
	})
}
