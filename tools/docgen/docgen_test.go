package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCommittedDocumentsAreWhatTheCodeSays(t *testing.T) {
	for _, d := range documents {
		want, err := d.render()
		if err != nil {
			t.Errorf("draw %s: %v", d.name, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(d.name)))
		if err != nil {
			t.Errorf("%v: run \"make docs\" and commit what it writes", err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run \"make docs\" and commit what it writes", d.name)
		}
	}
}

func TestRunWritesEveryDocument(t *testing.T) {
	dir := t.TempDir()
	for _, d := range documents {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(d.name)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{"-out", dir}); err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		if _, err := os.Stat(filepath.Join(dir, d.name)); err != nil {
			t.Error(err)
		}
	}
	if err := run([]string{"-out", filepath.Join(dir, "missing")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into a missing folder: %v, want one that is os.ErrNotExist", err)
	}
	if err := run([]string{"choreography.svg"}); err == nil || !strings.Contains(err.Error(), `unexpected argument "choreography.svg"`) {
		t.Errorf("with an argument: %v", err)
	}
}

func TestPictureIsWellFormedAndNamedForScreenReaders(t *testing.T) {
	picture, err := choreography(defaults())
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	dec := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if el, ok := token.(xml.StartElement); ok && (el.Name.Local == "title" || el.Name.Local == "desc") {
			var text string
			if err := dec.DecodeElement(&text, &el); err != nil {
				t.Fatal(err)
			}
			said[el.Name.Local] = text
		}
	}
	if said["title"] == "" || !strings.Contains(said["desc"], seconds(defaults().Drain)) {
		t.Errorf("title and desc say %q", said)
	}
}

// A changed default moves the bars: the texts on them must still
// fit, or the row needs a shorter text.
func TestWordsFitTheirBars(t *testing.T) {
	d := defaults()
	const letter = 6.1 // the mean of a 12 px sans-serif, on the wide side
	scale := (laneRight - laneLeft) / float64(lead+d.watchdog()+tail)
	for _, row := range lanes(d) {
		for _, b := range row.bars {
			room := float64(b.to-b.from) * scale
			if need := 8 + letter*float64(len(b.text)); b.text != "" && need > room {
				t.Errorf("%s: %q needs %.0f, and its bar is %.0f wide", row.name, b.text, need, room)
			}
		}
		if end := row.bars[len(row.bars)-1].to; row.after != "" {
			room := float64(d.watchdog()+tail-end) * scale
			if need := 9 + letter*float64(len(row.after)); need > room {
				t.Errorf("%s: %q needs %.0f, and %.0f are left", row.name, row.after, need, room)
			}
		}
	}
}

func TestImpossibleTimelinesAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*timeline){
		"Drain is 0s":             func(t *timeline) { t.Drain = 0 },
		"HookSlice is -1s":        func(t *timeline) { t.HookSlice = -time.Second },
		"leave no time":           func(t *timeline) { t.UnitSlice = t.Grace },
		"is outside the window":   func(t *timeline) { t.GoAwayAfter = t.Drain + 1 },
		"Margin is 0s: the pictu": func(t *timeline) { t.Margin = 0 },
	} {
		d := defaults()
		spoil(&d)
		if _, err := choreography(d); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error is %v, want one that says %q", err, name)
		}
	}
}

func TestEveryEdgeIsOnThePage(t *testing.T) {
	page, err := states()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"```mermaid\nstateDiagram-v2\n    [*] --> Created\n",
		"    Created --> Stopped: (added)\n",
		"| Created | Starting, Pending, Stopped (added) |",
		"| Killed | nothing: it is terminal |",
	} {
		// fsm writes a label's parentheses unescaped or as entities.
		if !strings.Contains(strings.NewReplacer("#40;", "(", "#41;", ")").Replace(string(page)), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}
