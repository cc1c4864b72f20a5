package conventions

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the places found into boundary.txt; then write a reason in place of each TODO")

// Only internal/call, and the places for which boundary.txt has a reason, start
// goroutines and look into errors.
func TestBoundary(t *testing.T) {
	text, err := os.ReadFile("boundary.txt")
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := readReasons(string(text))
	if err != nil {
		t.Fatalf("boundary.txt: %v", err)
	}
	found, err := crossings(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("boundary.txt", []byte(writeReasons(string(text), found, reasons)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range unreasoned(found, reasons) {
		t.Error(fault)
	}
	if t.Failed() {
		t.Log("the list is internal/conventions/boundary.txt; go test ./internal/conventions -run TestBoundary -update writes it")
	}
}

func TestBoundaryFaultsAreNamed(t *testing.T) {
	root := write(t, map[string]string{
		"a/a.go":             "package a\n\nimport \"errors\"\n\nfunc f() {\n\tgo f()\n\t_ = errors.Is(nil, nil)\n\t_, _ = errors.AsType[error](nil)\n\t_ = errors.Join()\n}\n",
		"a/a_test.go":        "package a\n\nfunc g() { go g() }\n",
		"internal/call/c.go": "package call\n\nfunc f() { go f() }\n",
		"testdata/x.go":      "package x\n\nfunc f() { go f() }\n",
		"b.go":               "package b\n\nimport \"errors\"\n\nvar _ = errors.As(nil, nil)\n",
	})
	found, err := crossings(root)
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := readReasons("# header\n\nerrors .: ours\nerrors a: TODO\ngo gone.go: it was there\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"errors a: no reason is given for a/a.go:7, a/a.go:8: use internal/call, or say why not",
		"go a/a.go: no reason is given for a/a.go:6: use internal/call, or say why not",
		"go gone.go: the reason is for a place that no longer exists",
	}
	if got := unreasoned(found, reasons); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got, want := writeReasons("# header\nold\n", found, reasons), "# header\nerrors .: ours\nerrors a: TODO\ngo a/a.go: TODO\n"; got != want {
		t.Errorf("written\n%s\nwant\n%s", got, want)
	}
	for _, bad := range []string{"go a.go", "go a.go: x\ngo a.go: y"} {
		if _, err := readReasons(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}
