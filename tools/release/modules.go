package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// published has the folders of the modules that others may import. private has those
// that only this repository uses. A module that is in neither is an error.
var (
	published = []string{".", "config/cobraconfig", "config/kongconfig", "config/viperconfig", "fleet", "grpcdrain", "kube", "otel", "vet", "worker/docker"}
	private   = []string{"bench", "deploy", "deploy/e2e", "examples", "examples/adopt", "examples/adopt/real", "examples/http3", "tools"}
)

// mod is one module of this repository.
type mod struct {
	dir, path string
	published bool
	needs     []string // modules of this repository that it requires
}

func (m *mod) file(name string) string { return path.Join(m.dir, name) }

// tag returns the tag of a version: Go wants the module's folder before it.
func (m *mod) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

// load returns the modules of the repository, each behind those that it requires.
func load(ctx context.Context, dir string) ([]*mod, error) {
	list, err := git(ctx, dir, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	byPath := map[string]*mod{}
	files := map[string]*modfile.File{}
	for _, name := range strings.Fields(list) {
		folder := path.Dir(name)
		if strings.Contains(name, "testdata/") {
			continue
		}
		if !slices.Contains(published, folder) && !slices.Contains(private, folder) {
			return nil, fmt.Errorf("%s is neither in the list of published modules nor in that of private ones: tools/release/modules.go", name)
		}
		file, err := parse(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		m := &mod{dir: folder, path: file.Module.Mod.Path, published: slices.Contains(published, folder)}
		byPath[m.path], files[m.path] = m, file
	}
	for own, m := range byPath {
		for _, r := range files[own].Require {
			need := byPath[r.Mod.Path]
			if need == nil {
				continue
			}
			if m.published && !need.published {
				return nil, fmt.Errorf("%s is published and requires %s, which is not", m.path, need.path)
			}
			m.needs = append(m.needs, need.path)
		}
	}
	return sorted(byPath)
}

// sorted puts each module behind those that it requires.
func sorted(byPath map[string]*mod) (list []*mod, err error) {
	state := map[string]int{} // 1: being visited, 2: in the list
	var visit func(string) error
	visit = func(p string) error {
		switch state[p] {
		case 1:
			return fmt.Errorf("%s requires itself by way of others", p)
		case 2:
			return nil
		}
		state[p] = 1
		for _, need := range byPath[p].needs {
			if err := visit(need); err != nil {
				return err
			}
		}
		state[p], list = 2, append(list, byPath[p])
		return nil
	}
	paths := make([]string, 0, len(byPath))
	for p := range byPath {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if err := visit(p); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func parse(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

// require sets the version of every module of this repository that the file requires.
func require(file *modfile.File, modules []*mod, version string) error {
	for _, m := range modules {
		for _, r := range file.Require {
			if r.Mod.Path == m.path {
				if err := file.AddRequire(m.path, version); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

func write(name string, file *modfile.File) error {
	file.Cleanup()
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// publish writes the published form of each go.mod and go.sum: the modules of this
// repository at their version, without replace lines. The checksum of a module covers
// its own go.sum, so the modules come in the order of their requirements.
func (r *release) publish(ctx context.Context, modules []*mod) error {
	sums := map[string][]string{} // the lines of go.sum, by module
	for _, m := range modules {
		if !m.published {
			continue
		}
		name := filepath.Join(r.dir, m.dir, "go.mod")
		file, err := parse(name)
		if err != nil {
			return err
		}
		if err := require(file, modules, r.version); err != nil {
			return err
		}
		for _, old := range slices.Clone(file.Replace) {
			if !slices.ContainsFunc(modules, func(own *mod) bool { return own.path == old.Old.Path }) {
				return fmt.Errorf("%s replaces %s: its importers would not see that", name, old.Old.Path)
			}
			if err := file.DropReplace(old.Old.Path, old.Old.Version); err != nil {
				return err
			}
		}
		if err := write(name, file); err != nil {
			return err
		}
		if len(m.needs) > 0 {
			if err := addSums(filepath.Join(r.dir, m.dir, "go.sum"), m, modules, sums); err != nil {
				return err
			}
		}
		if sums[m.path], err = r.sum(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// addSums adds the checksums of the modules that m requires, directly or not.
func addSums(name string, m *mod, modules []*mod, sums map[string][]string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	seen := map[string]bool{}
	var add func(*mod)
	add = func(m *mod) {
		for _, need := range m.needs {
			if seen[need] {
				continue
			}
			seen[need] = true
			lines = append(lines, sums[need]...)
			for _, other := range modules {
				if other.path == need {
					add(other)
				}
			}
		}
	}
	add(m)
	slices.Sort(lines)
	return os.WriteFile(name, []byte(strings.Join(slices.Compact(lines), "\n")+"\n"), 0o644)
}

// sum returns the lines of go.sum for the module as it stands in the working tree.
func (r *release) sum(ctx context.Context, m *mod) ([]string, error) {
	if _, err := git(ctx, r.dir, "add", "--", m.file("go.mod")); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(r.dir, m.dir, "go.sum")); err == nil {
		if _, err := git(ctx, r.dir, "add", "--", m.file("go.sum")); err != nil {
			return nil, err
		}
	}
	tree, err := git(ctx, r.dir, "write-tree")
	if err != nil {
		return nil, err
	}
	archive, err := os.CreateTemp("", "release-*.zip")
	if err != nil {
		return nil, err
	}
	defer os.Remove(archive.Name())
	defer archive.Close()
	if err := r.zip(archive, m, tree); err != nil {
		return nil, err
	}
	whole, err := dirhash.HashZip(archive.Name(), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(r.dir, m.dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	alone, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s %s %s", m.path, r.version, whole),
		fmt.Sprintf("%s %s/go.mod %s", m.path, r.version, alone),
	}, nil
}

// zip writes the module's archive as a module proxy would make it of a revision.
func (r *release) zip(to io.Writer, m *mod, revision string) error {
	folder := m.dir
	if folder == "." {
		folder = ""
	}
	return zip.CreateFromVCS(to, module.Version{Path: m.path, Version: r.version}, r.dir, revision, folder)
}

// develop writes each go.mod and go.sum for work in this repository: the version that
// was released, replaced by the folder beside it.
func (r *release) develop(ctx context.Context, modules []*mod) error {
	before, err := git(ctx, r.dir, "rev-parse", "HEAD~1")
	if err != nil {
		return err
	}
	for _, m := range modules {
		for _, name := range []string{"go.mod", "go.sum"} {
			if _, err := os.Stat(filepath.Join(r.dir, m.dir, name)); err != nil {
				continue
			}
			if _, err := git(ctx, r.dir, "checkout", before, "--", m.file(name)); err != nil {
				return err
			}
		}
		name := filepath.Join(r.dir, m.dir, "go.mod")
		file, err := parse(name)
		if err != nil {
			return err
		}
		if err := require(file, modules, r.version); err != nil {
			return err
		}
		if err := write(name, file); err != nil {
			return err
		}
	}
	return nil
}
