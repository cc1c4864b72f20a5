package tools

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks what the generators may import.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "docgen", Imports: []string{".", "./fsm", "./worker", "./procpool/...", "./config", "./metrics", "./internal/..."}, Brings: []string{"..."}},
			{Path: "models", Imports: []string{"./internal/models", "./internal/pages"}, Brings: []string{"..."}},
			{Path: "guarantees", Brings: []string{"..."}},
			{Path: "release", Imports: []string{"golang.org/x/mod"}, Brings: []string{"..."}},
			{
				Path: "protogen",
				Imports: []string{
					"github.com/bufbuild/protocompile", "google.golang.org/genproto/googleapis/api",
					"google.golang.org/protobuf",
				},
				Brings: []string{"..."},
			},
		},
	})
}
