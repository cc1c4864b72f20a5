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
			{Path: "guarantees", Brings: []string{"..."}},
			{Path: "release", Imports: []string{"golang.org/x/mod"}, Brings: []string{"..."}},
			{Path: "protogen", Imports: []string{"github.com/bufbuild/protocompile", "google.golang.org/genproto/googleapis/api", "google.golang.org/protobuf"}, Brings: []string{"..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/santhosh-tekuri/jsonschema/v6", TestOnly: true},
			{Module: "github.com/bufbuild/protocompile"},
			{Module: "google.golang.org/genproto/googleapis/api"},
			{Module: "google.golang.org/protobuf"},
			{Module: "golang.org/x/mod"},
			{Module: "github.com/santhosh-tekuri/jsonschema/v6", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
