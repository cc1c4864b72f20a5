package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// published has the folders of the modules that others may import. private has those
// that only this repository uses. A module that is in neither is an error.
var (
	published = []string{
		".", "config/cobraconfig", "config/viperconfig", "fleet", "grpcdrain", "kube", "otel", "vet", "worker/docker",
	}
	private = []string{
		"bench", "deploy", "deploy/e2e", "examples", "examples/adopt", "examples/http3", "tools",
	}
)

// mod is one module of this repository.
type mod struct {
	dir, path string
	published bool
	goMod     string // the name of its go.mod
	text      []byte // of it, as it is before the release
}

// tag returns the tag of a version: Go wants the module's folder before it.
func (m *mod) tag(version string) string { return path.Join(m.dir, version) }

// load returns the modules of the repository.
func load(ctx context.Context, dir string) ([]*mod, error) {
	list, err := git(ctx, dir, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var modules []*mod
	for _, name := range strings.Fields(list) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		folder := path.Dir(name)
		m := &mod{dir: folder, published: slices.Contains(published, folder), goMod: filepath.Join(dir, name)}
		if !m.published && !slices.Contains(private, folder) {
			return nil, fmt.Errorf("%s is neither in the list of published modules nor in that of private ones: tools/release/modules.go", name)
		}
		if m.text, err = os.ReadFile(m.goMod); err != nil {
			return nil, err
		}
		m.path = modfile.ModulePath(m.text)
		modules = append(modules, m)
	}
	for _, m := range modules {
		file, err := modfile.Parse(m.goMod, m.text, nil)
		if err != nil {
			return nil, err
		}
		for _, r := range file.Require {
			if own := find(modules, r.Mod.Path); own != nil && m.published && !own.published {
				return nil, fmt.Errorf("%s is published and requires %s, which is not", m.path, own.path)
			}
		}
	}
	return modules, nil
}

// find returns the module of that path, or nil.
func find(modules []*mod, path string) *mod {
	for _, m := range modules {
		if m.path == path {
			return m
		}
	}
	return nil
}

// write writes the go.mod of a module with this version of the modules of this repository:
// without replace lines to publish it, and with them to work on it.
func (m *mod) write(modules []*mod, version string, publish bool) error {
	file, err := modfile.Parse(m.goMod, m.text, nil)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(file.Require) {
		if find(modules, r.Mod.Path) == nil {
			continue
		}
		if err := file.AddRequire(r.Mod.Path, version); err != nil {
			return err
		}
	}
	for _, old := range slices.Clone(file.Replace) {
		if !publish {
			break
		}
		if find(modules, old.Old.Path) == nil {
			return fmt.Errorf("%s replaces %s: its importers would not see that", m.goMod, old.Old.Path)
		}
		if err := file.DropReplace(old.Old.Path, old.Old.Version); err != nil {
			return err
		}
	}
	file.Cleanup()
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(m.goMod, text, 0o644)
}
