package conventions

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// table is the import table of one module.
type table struct {
	repo, module string
	rooms        []Room
}

// imports checks every import in the source against the table.
func (t table) imports(packages []pkg) []string {
	var faults []string
	for _, p := range packages {
		if len(p.files) == 0 {
			continue
		}
		room, ok := t.room(p.folder)
		if !ok {
			faults = append(faults, fmt.Sprintf("package %s is in no room: add a row for %q to deps_test.go, with what it may import", p.path, p.folder))
			continue
		}
		for _, f := range p.files {
			for _, imported := range f.imports {
				if t.standard(imported) || imported == p.path || t.covers(room.Imports, imported) {
					continue
				}
				faults = append(faults, fmt.Sprintf("%s imports %s: beyond the standard library, %q may import %s", f.name, imported, room.Path, list(room.Imports)))
			}
		}
	}
	return faults
}

// builds checks every module in the build of the packages, direct or not, against
// the table.
func (t table) builds(builds map[string]build, requires []Require) []string {
	var faults []string
	for _, from := range slices.Sorted(maps.Keys(builds)) {
		room, ok := t.room(t.folder(from))
		if builds[from].DepOnly || builds[from].Standard || !ok {
			continue
		}
		via := reach(builds, from)
		var allowed []string
		for p := range via {
			if r, ok := t.room(t.folder(p)); ok && t.inModule(p) {
				allowed = append(append(allowed, r.Imports...), r.Brings...)
			}
		}
		for _, p := range slices.Sorted(maps.Keys(via)) {
			b := builds[p]
			if b.Standard || b.Module == nil || t.inModule(p) {
				continue
			}
			switch {
			case slices.Contains(room.Never, b.Module.Path):
				faults = append(faults, fmt.Sprintf("the build of %s must never have %s in it, and has: %s", from, b.Module.Path, chain(via, from, p)))
			case slices.Contains(requires, Require{Module: b.Module.Path, TestOnly: true}):
				faults = append(faults, fmt.Sprintf("module %s is for tests only, and is in the build of %s: %s", b.Module.Path, from, chain(via, from, p)))
			case !t.brought(allowed, b.Module.Path):
				faults = append(faults, fmt.Sprintf("the build of %s has %s in it, which its room does not name: %s", from, b.Module.Path, chain(via, from, p)))
			}
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

// standard reports whether the import path is the standard library's: its
// first element has no dot, which the go command demands of all others.
func (t table) standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
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
func reach(builds map[string]build, from string) map[string]string {
	via := map[string]string{from: ""}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		for _, next := range builds[todo[0]].Imports {
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
