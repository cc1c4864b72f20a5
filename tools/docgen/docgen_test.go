package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// repository is the root as the tests see it.
var repository = docs{filepath.Join("..", "..")}

func TestCommittedDocumentsAreWhatTheCodeSays(t *testing.T) {
	for name, render := range documents {
		want, err := render(repository)
		if err != nil {
			t.Errorf("draw %s: %v", name, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(repository.root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s is stale, or cannot be read (%v): run \"make docs\" and commit what it writes", name, err)
		}
	}
}

func TestRunWritesEveryDocument(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "docs"), os.DirFS(filepath.Join(repository.root, "docs"))); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(repository.root, "config.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(root, "config"), 0o755), os.WriteFile(filepath.Join(root, "config.go"), source, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name := range documents {
		if !strings.HasSuffix(name, ".md") {
			_ = os.Remove(filepath.Join(root, name))
		}
	}
	if err := run([]string{"-root", root}); err != nil {
		t.Fatal(err)
	}
	for name := range documents {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	if err := run([]string{"-root", filepath.Join(root, "missing")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a missing folder: %v, want one that is os.ErrNotExist", err)
	}
	if err := run([]string{"states.md"}); err == nil || !strings.Contains(err.Error(), `unexpected argument "states.md"`) {
		t.Errorf("with an argument: %v", err)
	}
}

func TestPartsThatThereAreNot(t *testing.T) {
	if _, err := states("Nothing"); err == nil {
		t.Error("states of nothing")
	}
	if _, err := repository.keys("nothing"); err == nil {
		t.Error("a part of keys that there is not")
	}
}

// The picture of a stop is drawn by hand, with the times of the default Config.
func TestPictureHasTheDefaults(t *testing.T) {
	picture, err := os.ReadFile(filepath.Join(repository.root, "docs", "choreography.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(picture, new(struct{})); err != nil {
		t.Error(err)
	}
	cfg := lifecycle.Config{}.WithDefaults()
	stop := cfg.DrainInterval + cfg.ShutdownGrace
	for text, length := range map[string]time.Duration{
		"the window, %g s":       cfg.DrainInterval,
		"the grace, within %g s": cfg.ShutdownGrace,
		"T0 + %g s</text>":       stop,
		">T0 + %g s":             stop + lifecycle.Margin,
	} {
		if length > 0 {
			text = fmt.Sprintf(text, length.Seconds())
		}
		if !strings.Contains(string(picture), text) {
			t.Errorf("docs/choreography.svg does not say %q", text)
		}
	}
}
