package kube

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the kube module: a program that uses it
// gets no module from outside.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{
				Path:    ".",
				Imports: []string{".", "./health", "./internal/call", "./internal/deadline"},
				Brings:  []string{"golang.org/x/sync"},
				Never:   []string{"k8s.io/client-go", "k8s.io/api"},
			},
		},
	})
}
