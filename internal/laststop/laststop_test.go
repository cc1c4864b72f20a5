package laststop

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type life struct {
	Name     string            `json:"name"`
	Parts    []part            `json:"parts"`
	Left     []string          `json:"left"`
	Took     time.Duration     `json:"took"`
	Previous *life             `json:"previous,omitempty"`
	Counts   map[string]uint64 `json:"reloadCounts,omitempty"`
}

type part struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Stack  string `json:"stack,omitempty"`
}

// open opens a file with a log that said returns.
func open(f *File, path string) (got *life, said func() string) {
	var log strings.Builder
	got = Open[life](f, path, slog.New(slog.NewTextHandler(&log, nil)))
	return got, log.String
}

// The record is short: texts and lists are cut, and the parts that went well are
// not in it.
func TestRecordIsBrief(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop.json")
	var f File
	if first, said := open(&f, path); first != nil || said() != "" {
		t.Fatalf("before the first life there is %+v, %s", first, said())
	}
	whole := life{
		Name: strings.Repeat("ä", 10_000), Took: 400 * 24 * time.Hour, Previous: &life{Name: "before"}, Counts: map[string]uint64{"x": 1},
		Parts: []part{{"a", "ok", ""}, {"b", "abandoned", strings.Repeat("x", 100_000)}, {"c", "running", ""}, {"d", "failed", ""}},
	}
	for range 1000 {
		whole.Left = append(whole.Left, "check")
	}
	f.Write(whole)
	info, err := os.Stat(path)
	if err != nil || info.Size() > 4<<10 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	got, _ := open(new(File), path)
	if len(got.Name) > maxText || len(got.Left) != maxList || got.Took != whole.Took || got.Previous != nil || got.Counts != nil {
		t.Errorf("the record is %+v", got)
	}
	if want := []part{{"b", "abandoned", ""}, {"d", "failed", ""}}; !slices.Equal(got.Parts, want) {
		t.Errorf("the parts are %+v, want %+v", got.Parts, want)
	}
	var raw map[string]json.RawMessage
	text, _ := os.ReadFile(path)
	if err := json.Unmarshal(text, &raw); err != nil || string(raw["version"]) != "1" {
		t.Errorf("%v, version %s", err, raw["version"])
	}
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if len(names) != 1 {
		t.Errorf("beside the record there are %q", names)
	}
}

// The last words of a process that is killed change the last record, and then stay.
func TestFinalRecordStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop.json")
	var f File
	_, said := open(&f, path)
	f.Write(life{Name: "running", Took: 7})
	for _, name := range []string{"killed", "killed again"} {
		f.Final(map[string]any{"name": name})
	}
	f.Write(life{Name: "stopped"})
	if got, _ := open(new(File), path); got.Name != "killed" || got.Took != 7 || said() != "" {
		t.Errorf("the record is %+v, %s", got, said())
	}
}

func TestFileThatIsNoRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop.json")
	for text, want := range map[string]string{
		"":                                    "unexpected end",
		"{":                                   "unexpected end",
		`{"version":1}`:                       "unexpected end",
		`{"version":1,"life":[]}`:             "cannot unmarshal",
		`{"version":2,"life":{}}`:             "version 2, want 1",
		strings.Repeat(" ", maxFile) + "null": "longer than",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, said := open(new(File), path); got != nil || !strings.Contains(said(), want) {
			t.Errorf("%.20q: %+v, %s; want an error with %q", text, got, said(), want)
		}
	}
	var none File
	got, said := open(&none, "")
	none.Write(life{})
	none.Final(nil)
	if got != nil || none.Keeps() || said() != "" {
		t.Errorf("without a path: %+v, %s", got, said())
	}
}

// A path to a device, a link or a socket stays what it is: /dev/null is not replaced.
func TestOnlyARegularFileIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop.json")
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}
	var f File
	_, said := open(&f, path)
	f.Write(life{Name: "x"})
	if target, err := os.Readlink(path); err != nil || target != os.DevNull {
		t.Errorf("the link is now %q, %v", target, err)
	}
	if !strings.Contains(said(), "will not know of this life") || !strings.Contains(said(), "not a regular file") {
		t.Errorf("the log does not say why: %s", said())
	}
}

// A life that cannot write its record leaves none: that of an earlier life or phase would
// pass for it.
func TestRecordThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stop.json")
	var f File
	_, said := open(&f, path)
	f.Write(life{Name: "before"})
	// No file can be made beside the record, as on a full disk.
	if err := os.MkdirAll(filepath.Join(path+".new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.Write(life{Name: "later"})
	if !strings.Contains(said(), "will not know of this life") {
		t.Errorf("the log says %q", said())
	}
	if got, said := open(new(File), path); got != nil || said() != "" {
		t.Errorf("the record is %+v, %s; want none", got, said())
	}
	// Once there is place, the record is written again.
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	f.Write(life{Name: "last"})
	if got, _ := open(new(File), path); got == nil || got.Name != "last" {
		t.Errorf("the record is %+v", got)
	}
}

// What a killed process has left beside the record does not hinder the next one, and a
// link there is not followed.
func TestLeftoverBesideTheRecord(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "stop.json"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path+".new"); err != nil {
		t.Fatal(err)
	}
	var f File
	_, said := open(&f, path)
	f.Write(life{Name: "x"})
	if got, _ := open(new(File), path); got == nil || got.Name != "x" || said() != "" {
		t.Errorf("the record is %+v, %s", got, said())
	}
	if content, err := os.ReadFile(other); err != nil || string(content) != "precious" {
		t.Errorf("the other file has %q, %v", content, err)
	}
}

// Only a GET that began when the scrape was awaited, and whose client is there, counts.
func TestScrape(t *testing.T) {
	var s Scrape
	var during func()
	h := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if during != nil {
			during()
		}
	}))
	ask := func(method string) { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/metrics", nil)) }
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ask(http.MethodGet)
	during = func() { s.Await(over, time.Hour) }
	ask(http.MethodGet) // began before
	during = nil
	ask(http.MethodHead)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(over, http.MethodGet, "/metrics", nil)) // its client has gone
	if s.Await(over, time.Hour) {
		t.Error("no scrape has come, and one is reported")
	}
	ask(http.MethodGet)
	ask(http.MethodGet)
	if !s.Await(t.Context(), time.Hour) {
		t.Error("a scrape has come")
	}
}
