package main

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what this example may import.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{".", "github.com/quic-go/quic-go"}, Brings: []string{"..."}},
		},
	})
}
