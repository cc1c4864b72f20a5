package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// repository makes a small repository with two published modules and a private one.
func repository(t *testing.T) string {
	t.Helper()
	from := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       "module example.com/m\n\ngo 1.26.0\n",
		"m.go":         "package m\n\nconst A = 1\n",
		"LICENSE":      "a licence\n",
		"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-01\n",
		"otel/go.mod":  "module example.com/m/otel\n\ngo 1.26.0\n\nrequire example.com/m v0.0.0\n\nreplace example.com/m => ../\n",
		"otel/go.sum":  "",
		"otel/o.go":    "package otel\n\nimport _ \"example.com/m\"\n",
		"bench/go.mod": "module example.com/m/bench\n\ngo 1.26.0\n\nrequire example.com/m/otel v0.0.0\n\nrequire example.com/m v0.0.0 // indirect\n\nreplace example.com/m => ../\n\nreplace example.com/m/otel => ../otel\n",
		"bench/go.sum": "",
		"Makefile":     "alone:\n\t@cd otel && GOWORK=off go vet ./...\n",
	} {
		name = filepath.Join(from, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "repository")
	if err := copyRepository(t.Context(), from, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func show(t *testing.T, dir, object string) string {
	t.Helper()
	text, err := git(t.Context(), dir, "show", object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The tagged commit has real versions and no replace lines; the next commit
// has the replace lines again.
func TestReleaseMakesCommitsAndTags(t *testing.T) {
	dir := repository(t)
	if err := run(t.Context(), []string{"-dir", dir, "-version", "v0.1.0"}); err != nil {
		t.Fatal(err)
	}
	tags, err := git(t.Context(), dir, "tag")
	if err != nil || tags != "otel/v0.1.0\nv0.1.0" {
		t.Errorf("tags %q, %v", tags, err)
	}
	released := show(t, dir, "otel/v0.1.0:otel/go.mod")
	if !strings.Contains(released, "require example.com/m v0.1.0") || strings.Contains(released, "replace") {
		t.Errorf("the released go.mod:\n%s", released)
	}
	for _, file := range []string{"otel/go.mod", "bench/go.mod"} {
		if text := show(t, dir, "HEAD:"+file); !strings.Contains(text, "replace example.com/m => ../") || strings.Contains(text, "v0.0.0") {
			t.Errorf("%s after the release:\n%s", file, text)
		}
	}
	if err := run(t.Context(), []string{"-dir", dir, "-version", "v0.1.0"}); err == nil || !strings.Contains(err.Error(), "not newer than v0.1.0") {
		t.Errorf("the same release again: %v", err)
	}
}

func TestReleaseRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		version string
		change  func(dir string) error
		want    string
	}{
		"no version":    {"0.1.0", nil, `"0.1.0" is not a version such as v0.2.0`},
		"part of one":   {"v0.1", nil, `"v0.1" is not a version`},
		"a major":       {"v2.0.0", nil, "a new major version needs new module paths"},
		"a dirty tree":  {"v0.1.0", func(dir string) error { return os.WriteFile(filepath.Join(dir, "m.go"), nil, 0o644) }, "not committed"},
		"no changelog":  {"v0.3.0", nil, `no section "## [0.3.0]"`},
		"a strange one": {"v0.1.0", unlisted, "strange/go.mod is neither"},
		"a private one": {"v0.1.0", requiresPrivate, "is published and requires example.com/m/bench, which is not"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := repository(t)
			if test.change != nil {
				if err := test.change(dir); err != nil {
					t.Fatal(err)
				}
			}
			before := show(t, dir, "HEAD")
			err := run(context.Background(), []string{"-dir", dir, "-version", test.version})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if tags, _ := git(t.Context(), dir, "tag"); tags != "" || show(t, dir, "HEAD") != before {
				t.Error("a refused release left a commit or a tag")
			}
		})
	}
}

// A release that fails in the middle leaves nothing behind.
func TestReleaseThatFailsIsUndone(t *testing.T) {
	dir := repository(t)
	if _, err := git(t.Context(), dir, "tag", "otel/v0.1.0"); err != nil { // the tag of an earlier attempt
		t.Fatal(err)
	}
	before := show(t, dir, "HEAD")
	err := run(t.Context(), []string{"-dir", dir, "-version", "v0.1.0"})
	if err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("got %v", err)
	}
	tags, _ := git(t.Context(), dir, "tag")
	status, _ := git(t.Context(), dir, "status", "--porcelain")
	if tags != "otel/v0.1.0" || status != "" || show(t, dir, "HEAD") != before {
		t.Errorf("left: tags %q, changes %q", tags, status)
	}
}

// unlisted adds a module that is in no list.
func unlisted(dir string) error {
	return commitFile(dir, "strange/go.mod", "module example.com/m/strange\n")
}

// requiresPrivate makes a published module require a private one.
func requiresPrivate(dir string) error {
	return commitFile(dir, "otel/go.mod", "module example.com/m/otel\n\ngo 1.26.0\n\nrequire example.com/m/bench v0.0.0\n")
}

func commitFile(dir, name, text string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	if _, err := git(context.Background(), dir, "add", "--all"); err != nil {
		return err
	}
	_, err := git(context.Background(), dir, "commit", "--message", "a change")
	return err
}
