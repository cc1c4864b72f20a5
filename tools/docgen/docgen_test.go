package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
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
	if err := run([]string{"choreography.svg"}); err == nil || !strings.Contains(err.Error(), `unexpected argument "choreography.svg"`) {
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

func TestPictureIsWellFormed(t *testing.T) {
	picture, err := choreography(defaultTimeline())
	if err != nil {
		t.Fatal(err)
	}
	in := xml.NewDecoder(strings.NewReader(picture))
	for {
		if _, err := in.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A changed default moves the bars: the texts on them must still fit.
func TestPictureRefusesATextThatDoesNotFit(t *testing.T) {
	for text, change := range map[string]func(*timeline){
		`"accept as before" needs`:   func(t *timeline) { t.Window = t.GoAway },
		`"last in, first out" needs`: func(t *timeline) { t.UnitEnd = t.GraceEnd },
	} {
		d := defaultTimeline()
		change(&d)
		if _, err := choreography(d); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error is %v, want one that says %s", err, text)
		}
	}
}
