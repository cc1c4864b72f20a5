package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/module"
)

// trial is the version that checkRelease releases. It is in no repository.
const trial = "v0.999.0"

// stranger has a program that imports every published module.
//
//go:embed all:testdata/stranger
var stranger embed.FS

// checkRelease releases a copy of the repository, serves it as a module proxy does, and
// installs from there: the command, and a program that uses every published module.
// Dependencies come from this machine's module cache; the network has only what is
// missing there.
func checkRelease(ctx context.Context, repository string) error {
	dir, err := os.MkdirTemp("", "release-check-")
	if err != nil {
		return err
	}
	defer removeAll(dir)
	r := &release{dir: filepath.Join(dir, "repository"), version: trial}
	if err := copyRepository(ctx, repository, r.dir); err != nil {
		return err
	}
	modules, err := load(ctx, r.dir)
	if err != nil {
		return err
	}
	// Only published modules are downloaded below, so their dependencies must be here.
	for _, m := range modules {
		if m.published {
			if err := command(ctx, filepath.Join(repository, m.dir), []string{"GOWORK=off"}, "go", "mod", "download"); err != nil {
				return err
			}
		}
	}
	if err := r.make(ctx); err != nil {
		return err
	}
	proxy := filepath.Join(dir, "proxy")
	for _, m := range modules {
		if m.published {
			if err := r.serve(ctx, proxy, m); err != nil {
				return err
			}
		}
	}
	cache, err := goenv(ctx, "GOMODCACHE")
	if err != nil {
		return err
	}
	network, err := goenv(ctx, "GOPROXY")
	if err != nil {
		return err
	}
	bare := bareMachine(dir, strings.Join([]string{"file://" + filepath.ToSlash(proxy), "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")), network}, ","))
	if err := bare.installs(ctx, modules, r.version); err != nil {
		return err
	}
	if err := bare.imports(ctx, filepath.Join(dir, "stranger"), modules, r.version); err != nil {
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
	if _, err := git(ctx, to, "init", "--quiet"); err != nil {
		return err
	}
	for _, setting := range [][2]string{{"user.name", "release-check"}, {"user.email", "release-check@localhost"}, {"gc.auto", "0"}} {
		if _, err := git(ctx, to, "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	if _, err := git(ctx, to, "--work-tree="+from, "add", "--all"); err != nil {
		return err
	}
	if _, err := git(ctx, to, "commit", "--quiet", "--message", "the repository as it is"); err != nil {
		return err
	}
	_, err := git(ctx, to, "reset", "--quiet", "--hard")
	return err
}

// serve adds a module to a folder that works as a module proxy: GOPROXY=file://….
// https://go.dev/ref/mod#goproxy-protocol
func (r *release) serve(ctx context.Context, proxy string, m *mod) error {
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tag := m.tag(r.version)
	goMod, err := git(ctx, r.dir, "show", tag+":"+strings.TrimPrefix(m.file("go.mod"), "./"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": r.version, "Time": time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := r.zip(&archive, m, tag); err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list": []byte(r.version + "\n"), r.version + ".mod": []byte(goMod + "\n"), r.version + ".info": info, r.version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
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

func bareMachine(dir, proxy string) machine {
	return machine{dir: dir, env: []string{
		"GOWORK=off", "GOPROXY=" + proxy, "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off", "GONOSUMDB=", "GOPRIVATE=", "GONOPROXY=", "GOTOOLCHAIN=local",
		"GOMODCACHE=" + filepath.Join(dir, "modcache"), "GOBIN=" + filepath.Join(dir, "bin"),
	}}
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

// installs installs every command of the published modules as their pages say.
func (m machine) installs(ctx context.Context, modules []*mod, version string) error {
	commands := map[string]string{"fleet": "/cmd/lifecyclectl@", "vet": "/cmd/lifecycle-vet@"}
	for _, own := range modules {
		if commands[own.dir] == "" {
			continue
		}
		command := own.path + commands[own.dir] + version
		fmt.Println("go install " + command)
		if _, err := m.output(ctx, m.dir, "go", "install", command); err != nil {
			return err
		}
	}
	program := filepath.Join(m.dir, "bin", "lifecyclectl")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	said, err := m.output(ctx, m.dir, program, "version")
	if err != nil {
		return err
	}
	if !strings.Contains(said, "lifecyclectl "+version) {
		return fmt.Errorf("lifecyclectl version prints %q, want %s", said, version)
	}
	program = filepath.Join(filepath.Dir(program), strings.Replace(filepath.Base(program), "lifecyclectl", "lifecycle-vet", 1))
	if said, err = m.output(ctx, m.dir, program, "--version"); err != nil {
		return err
	}
	if !strings.Contains(said, version) {
		return fmt.Errorf("lifecycle-vet --version prints %q, want %s", said, version)
	}
	return nil
}

// imports builds and runs the stranger's program, in a module of its own.
func (m machine) imports(ctx context.Context, dir string, modules []*mod, version string) error {
	files, err := fs.Sub(stranger, "testdata/stranger")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "main.go.txt"), filepath.Join(dir, "main.go")); err != nil {
		return err
	}
	if _, err := m.output(ctx, dir, "go", "mod", "init", "example.com/stranger"); err != nil {
		return err
	}
	get := []string{"get"}
	for _, own := range modules {
		if own.published {
			get = append(get, own.path+"@"+version)
		}
	}
	fmt.Println("go " + strings.Join(get, " "))
	if _, err := m.output(ctx, dir, "go", get...); err != nil {
		return err
	}
	if _, err := m.output(ctx, dir, "go", "mod", "tidy"); err != nil {
		return err
	}
	said, err := m.output(ctx, dir, "go", "run", ".")
	if err != nil {
		return err
	}
	for _, own := range modules {
		if own.published && !strings.Contains(said, "uses "+own.path+"\n") {
			return fmt.Errorf("the program of a stranger does not use %s; it printed:\n%s", own.path, said)
		}
	}
	return nil
}

func goenv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

// removeAll removes a folder in which a module cache may be read-only.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}
