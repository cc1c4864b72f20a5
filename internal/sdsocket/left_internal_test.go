package sdsocket

import (
	"os"
	"slices"
	"testing"
)

// A service manager that keeps sockets forgets one that a new process no longer wants, also when it
// was closed because that process has taken over.
func TestKeepForgetsWhatGoHasClosed(t *testing.T) {
	const far = 1000 // no descriptor of the test
	s := Sockets{gate: make(chan struct{}), names: make([]string, far), taken: make([]bool, far)}
	s.names[far-1] = ownName("tcp", ":8080")
	if left := s.Go(); !slices.Equal(left, []string{"tcp=:8080"}) {
		t.Fatalf("Go closed %q", left)
	}
	for _, want := range [][]string{{s.names[far-1]}, nil} {
		var forgotten []string
		keep := func(string, *os.File) {}
		if err := s.Keep(keep, func(name string) { forgotten = append(forgotten, name) }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(forgotten, want) {
			t.Errorf("Keep forgot %q, want %q", forgotten, want)
		}
	}
}
