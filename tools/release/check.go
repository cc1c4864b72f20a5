package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// trial is the version that checkRelease releases. It is in no repository.
const trial = "v0.999.0"

// repositoryURL is where Go looks for the modules of this repository.
const repositoryURL = "https://github.com/pleme-io/lifecycle-go"

// stranger has a program that imports every published module.
//
//go:embed all:testdata/stranger
var stranger embed.FS

// commands are the programs whose installation is documented, by the module's folder, and the
// argument that prints their version.
var commands = map[string]struct{ folder, version string }{
	".":     {"cmd/lifecycle-run", "--version"},
	"fleet": {"cmd/lifecyclectl", "version"},
	"vet":   {"cmd/lifecycle-vet", "--version"},
}

// checkRelease releases a copy of the repository and installs from its tags: the commands,
// and a program that uses every published module. Go fetches these modules with git from the
// copy, as it would from the repository; their dependencies come from this machine's module
// cache, and the network has only what is missing there.
func checkRelease(ctx context.Context, repository string) error {
	dir, err := os.MkdirTemp("", "release-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &release{dir: filepath.Join(dir, "repository"), version: trial}
	if err := copyRepository(ctx, repository, r.dir); err != nil {
		return err
	}
	if err := r.make(ctx); err != nil {
		return err
	}
	modules, err := load(ctx, r.dir)
	if err != nil {
		return err
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return err
	}
	folder, network, _ := strings.Cut(strings.TrimSpace(string(cache)), "\n")
	bare := machine{dir: dir, env: []string{
		"GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOTOOLCHAIN=local",
		"GOMODCACHE=" + filepath.Join(dir, "modcache"), "GOBIN=" + filepath.Join(dir, "bin"),
		"GOPROXY=file://" + filepath.ToSlash(filepath.Join(folder, "cache", "download")) + "," + network,
		"GOSUMDB=off", "GOPRIVATE=" + strings.TrimPrefix(repositoryURL, "https://"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + filepath.ToSlash(r.dir) + ".insteadOf", "GIT_CONFIG_VALUE_0=" + repositoryURL,
	}}
	if err := bare.installs(ctx, modules, r.version); err != nil {
		return err
	}
	if err := bare.imports(ctx, modules, r.version); err != nil {
		return err
	}
	fmt.Printf("release-check: %d modules install and work at %s\n", len(r.tags), r.version)
	return nil
}

// copyRepository makes a repository of its own from the files that are, or would be, in
// the repository at from. It does not need the history of that one.
func copyRepository(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"config", "user.name", "release-check"},
		{"config", "user.email", "release-check@localhost"},
		{"config", "gc.auto", "0"},
		{"--work-tree=" + from, "add", "--all"},
		{"commit", "--quiet", "--message", "the repository as it is"},
		{"reset", "--quiet", "--hard"},
	} {
		if _, err := git(ctx, to, args...); err != nil {
			return err
		}
	}
	return nil
}

// machine is a place with Go and nothing else: no workspace, no module cache.
type machine struct {
	dir string
	env []string
}

func (m machine) output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), m.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// installs installs every command of the published modules as their pages say, and asks it
// for its version.
func (m machine) installs(ctx context.Context, modules []*mod, version string) error {
	for _, own := range modules {
		command, ok := commands[own.dir]
		if !ok {
			continue
		}
		path := own.path + "/" + command.folder + "@" + version
		fmt.Println("go install " + path)
		if _, err := m.output(ctx, m.dir, "go", "install", path); err != nil {
			return err
		}
		said, err := m.output(ctx, m.dir, filepath.Join(m.dir, "bin", filepath.Base(command.folder)), command.version)
		if err != nil {
			return err
		}
		if !strings.Contains(said, version) {
			return fmt.Errorf("%s %s prints %q, want %s", command.folder, command.version, said, version)
		}
	}
	return nil
}

// imports builds and runs the stranger's program, in a module of its own.
func (m machine) imports(ctx context.Context, modules []*mod, version string) error {
	files, err := fs.Sub(stranger, "testdata/stranger")
	if err != nil {
		return err
	}
	dir := filepath.Join(m.dir, "stranger")
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "main.go.txt"), filepath.Join(dir, "main.go")); err != nil {
		return err
	}
	get := []string{"get"}
	for _, own := range modules {
		if own.published {
			get = append(get, own.path+"@"+version)
		}
	}
	fmt.Println("go " + strings.Join(get, " "))
	var said string
	for _, args := range [][]string{{"mod", "init", "example.com/stranger"}, get, {"mod", "tidy"}, {"run", "."}} {
		if said, err = m.output(ctx, dir, "go", args...); err != nil {
			return err
		}
	}
	for _, own := range modules {
		if own.published && !strings.Contains(said, "uses "+own.path+"\n") {
			return fmt.Errorf("the program of a stranger does not use %s; it printed:\n%s", own.path, said)
		}
	}
	return nil
}
