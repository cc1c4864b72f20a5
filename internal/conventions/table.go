package conventions

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// table is what a module may import.
type table struct {
	repo, module string
	rooms        []Room
}

func (t table) check(packages map[string]pkg, platform string) (faults []string, err error) {
	found := false
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		p := packages[name]
		if p.DepOnly || p.Standard {
			continue
		}
		found = true
		if len(p.GoFiles)+len(p.CgoFiles) > 0 {
			faults = append(faults, t.checkPackage(packages, p)...)
		}
		if checked, err := checksLeaks(p); err != nil {
			return nil, err
		} else if !checked && platform == platforms[0] { // a TestMain may be for one platform
			faults = append(faults, fmt.Sprintf("package %s has tests and no TestMain that calls goleak: goroutines that it leaks would go unseen", name))
		}
	}
	if !found {
		return nil, fmt.Errorf("module %s has no packages: is this the folder of a go.mod?", t.module)
	}
	return faults, nil
}

// checksLeaks reports whether a package looks for leaked goroutines, or has no tests
// besides the one in deps_test.go.
func checksLeaks(p pkg) (bool, error) {
	tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
	tests = slices.DeleteFunc(tests, func(name string) bool { return name == "deps_test.go" })
	for _, name := range tests {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return false, err
		}
		_, main, ok := strings.Cut(string(text), "\nfunc TestMain(")
		if ok && strings.Contains(main, "goleak.") {
			return true, nil
		}
	}
	return len(tests) == 0, nil
}

// checkPackage checks the comment of a package, its imports, and the modules in its build.
func (t table) checkPackage(packages map[string]pkg, p pkg) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	switch {
	case p.Doc == "":
		fault("package %s has no doc comment: say above its package clause what it is", p.ImportPath)
	case p.Name != "main" && !strings.HasPrefix(p.Doc, "Package "+p.Name+" "):
		fault("the doc comment of package %s must begin with %q", p.ImportPath, "Package "+p.Name+" ")
	}
	room, ok := t.room(t.folder(p.ImportPath))
	if !ok {
		fault("package %s is in no room: add a row for %q to deps_test.go, with what it may import", p.ImportPath, t.folder(p.ImportPath))
		return faults
	}
	for _, imported := range p.Imports {
		if !packages[imported].Standard && imported != "C" && !t.covers(room.Imports, imported) {
			fault("%s imports %s: beyond the standard library, %q may import only %q", p.ImportPath, imported, room.Path, room.Imports)
		}
	}
	via := reach(packages, p.ImportPath)
	var allowed []string
	for name := range via {
		if r, ok := t.room(t.folder(name)); ok && t.inModule(name) {
			allowed = append(append(allowed, r.Imports...), r.Brings...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(via)) {
		from := packages[name].Module
		if from == nil || t.inModule(name) {
			continue
		}
		switch {
		case slices.Contains(room.Never, from.Path):
			fault("the build of %s must never have %s in it, and has: %s", p.ImportPath, from.Path, chain(via, p.ImportPath, name))
		case !t.brought(allowed, from.Path):
			fault("the build of %s has %s in it, which its room does not name: %s", p.ImportPath, from.Path, chain(via, p.ImportPath, name))
		}
	}
	return faults
}

// room returns the first room that covers the folder.
func (t table) room(folder string) (Room, bool) {
	i := slices.IndexFunc(t.rooms, func(r Room) bool { return matches(r.Path, folder) })
	if i < 0 {
		return Room{}, false
	}
	return t.rooms[i], true
}

func (t table) folder(importPath string) string {
	if importPath == t.module {
		return "."
	}
	return strings.TrimPrefix(importPath, t.module+"/")
}

func (t table) inModule(importPath string) bool {
	return importPath == t.module || strings.HasPrefix(importPath, t.module+"/")
}

// covers reports whether an import is among the allowed ones.
func (t table) covers(allowed []string, imported string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		if below, ok := t.ours(a); ok {
			return matches(path.Join(t.repo, below), imported)
		}
		return imported == a || strings.HasPrefix(imported, a+"/")
	})
}

// brought reports whether the table allows a module that is not imported directly.
func (t table) brought(allowed []string, module string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		if below, ok := t.ours(a); ok {
			// Another module of this repository has its own table.
			return module == t.repo || matches(path.Join(t.repo, below), module)
		}
		return a == "..." || a == module || strings.HasPrefix(a, module+"/") || strings.HasPrefix(module, a+"/")
	})
}

// ours returns the folder that "." and "./fsm" stand for.
func (t table) ours(allowed string) (string, bool) {
	if allowed == "." {
		return ".", true
	}
	return strings.CutPrefix(allowed, "./")
}

// matches reports whether p is the pattern or, below "x/...", x or under it.
func matches(pattern, p string) bool {
	if below, ok := strings.CutSuffix(pattern, "..."); ok {
		return below == "" || p+"/" == below || strings.HasPrefix(p, below)
	}
	return p == pattern
}

// reach returns every package that from needs, with the one that imports it.
func reach(packages map[string]pkg, from string) map[string]string {
	via := map[string]string{from: ""}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		for _, next := range packages[todo[0]].Imports {
			if _, ok := via[next]; !ok {
				via[next] = todo[0]
				todo = append(todo, next)
			}
		}
	}
	return via
}

// chain returns the chain of imports from from to p.
func chain(via map[string]string, from, p string) string {
	steps := []string{p}
	for p != from {
		p = via[p]
		steps = append(steps, p)
	}
	slices.Reverse(steps)
	return strings.Join(steps, " -> ")
}
