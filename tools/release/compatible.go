package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

// compatible refuses a release that breaks importers without saying so. Before v1 an
// incompatible change needs a new minor version, after it a new major one. It compares
// internal packages too: a module of this repository uses internal packages of the root,
// and an importer may combine an older module with a newer root.
func (r *release) compatible(ctx context.Context, last string) error {
	if semver.Major(r.version) == "v0" && semver.MajorMinor(r.version) != semver.MajorMinor(last) {
		return nil
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tool := filepath.Join(dir, "apidiff")
	err = command(ctx, filepath.Join(r.dir, "tools"), []string{"GOWORK=off"},
		"go", "build", "-modfile=release.mod", "-o", tool, "golang.org/x/exp/cmd/apidiff")
	if err != nil {
		return err
	}
	old := filepath.Join(dir, "old")
	if _, err := git(ctx, r.dir, "worktree", "add", "--detach", old, last); err != nil {
		return err
	}
	defer func() { _, _ = git(context.WithoutCancel(ctx), r.dir, "worktree", "remove", "--force", old) }()
	modules, err := load(ctx, r.dir)
	if err != nil {
		return err
	}
	var broken []string
	for _, m := range modules {
		if _, err := os.Stat(filepath.Join(old, m.dir, "go.mod")); err != nil || !m.published {
			continue
		}
		data := filepath.Join(dir, "export")
		err := command(ctx, filepath.Join(old, m.dir), []string{"GOWORK=off"}, tool, "-m", "-allow-internal", "-w", data, m.path)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, tool, "-m", "-allow-internal", "-incompatible", data, m.path)
		cmd.Dir, cmd.Env = filepath.Join(r.dir, m.dir), append(os.Environ(), "GOWORK=off")
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("apidiff of %s: %w", m.path, err)
		}
		if text := strings.TrimSpace(string(out)); text != "" {
			broken = append(broken, m.path+":\n"+text)
		}
	}
	if len(broken) == 0 {
		return nil
	}
	part := "major"
	if semver.Major(r.version) == "v0" {
		part = "minor"
	}
	return fmt.Errorf("%s is not compatible with %s; it needs the next %s version:\n%s", r.version, last, part, strings.Join(broken, "\n"))
}
