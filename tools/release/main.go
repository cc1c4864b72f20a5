// Command release makes a release of every published module of this repository, or
// checks that a release would work for its users. See RELEASING.md.
//
//	release -version v0.2.0        make the commits and tags; push nothing
//	release -check                 release a copy, install from it as a stranger does
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	dir := flags.String("dir", "..", "the repository")
	version := flags.String("version", "", "the version to release, such as v0.2.0")
	check := flags.Bool("check", false, "release a copy of the repository, and install from it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	repository, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	switch {
	case *check && *version == "":
		return checkRelease(ctx, repository)
	case *check || *version == "":
		return errors.New("want either -version or -check")
	}
	r := &release{dir: repository, version: *version}
	if err := r.checks(ctx); err != nil {
		return err
	}
	if err := r.make(ctx); err != nil {
		return err
	}
	fmt.Printf("made %d tags of %s. To publish:\n  git push --atomic origin HEAD %s\n", len(r.tags), r.version, strings.Join(r.tags, " "))
	return nil
}

// release is one release of all published modules.
type release struct {
	dir, version string
	tags         []string // that make has made
}

// checks refuses what must not be released.
func (r *release) checks(ctx context.Context) error {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("%q is not a version such as v0.2.0", r.version)
	}
	if major := semver.Major(r.version); major != "v0" && major != "v1" {
		return fmt.Errorf("%s: a new major version needs new module paths, see RELEASING.md", r.version)
	}
	status, err := git(ctx, r.dir, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the working tree has changes that are not committed:\n%s", status)
	}
	changelog, err := os.ReadFile(filepath.Join(r.dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if heading := "## [" + strings.TrimPrefix(r.version, "v") + "]"; !bytes.Contains(changelog, []byte("\n"+heading)) {
		return fmt.Errorf("CHANGELOG.md has no section %q: rename [Unreleased] and start a new one", heading)
	}
	if _, err := load(ctx, r.dir); err != nil {
		return err
	}
	last, err := r.last(ctx)
	if err != nil {
		return err
	}
	if semver.Compare(r.version, last) <= 0 {
		return fmt.Errorf("%s is not newer than %s, the last release", r.version, last)
	}
	return command(ctx, r.dir, nil, "make", "--no-print-directory", "alone")
}

// last returns the newest released version, "" before the first release.
func (r *release) last(ctx context.Context) (string, error) {
	tags, err := git(ctx, r.dir, "tag", "--list", "v*")
	if err != nil {
		return "", err
	}
	newest := ""
	for _, tag := range strings.Fields(tags) {
		if semver.IsValid(tag) && semver.Compare(tag, newest) > 0 {
			newest = tag
		}
	}
	return newest, nil
}

// make writes the published form of every module, commits and tags it, and commits the
// form for development again. After an error the repository is as it was before.
func (r *release) make(ctx context.Context) (err error) {
	before, err := git(ctx, r.dir, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.undo(context.WithoutCancel(ctx), before))
		}
	}()
	modules, err := load(ctx, r.dir)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if !m.published {
			continue
		}
		if err := m.write(modules, r.version, true); err != nil {
			return err
		}
	}
	if _, err := git(ctx, r.dir, "commit", "--all", "--allow-empty", "--message", "release "+r.version); err != nil {
		return err
	}
	for _, m := range modules {
		if !m.published {
			continue
		}
		tag := m.tag(r.version)
		if _, err := git(ctx, r.dir, "tag", "--annotate", "--message", m.path+" "+r.version, tag); err != nil {
			return err
		}
		r.tags = append(r.tags, tag)
	}
	for _, m := range modules {
		if err := m.write(modules, r.version, false); err != nil {
			return err
		}
	}
	_, err = git(ctx, r.dir, "commit", "--all", "--allow-empty", "--message", "go on after "+r.version)
	return err
}

// undo removes the commits and tags that make has made.
func (r *release) undo(ctx context.Context, before string) error {
	_, err := git(ctx, r.dir, "reset", "--quiet", "--hard", before)
	for _, tag := range r.tags {
		_, gone := git(ctx, r.dir, "tag", "--delete", tag)
		err = errors.Join(err, gone)
	}
	r.tags = nil
	return err
}

// git returns what a git command prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, trouble.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// command runs a program and shows what it prints.
func command(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s in %s: %w", name, strings.Join(args, " "), dir, err)
	}
	return nil
}
