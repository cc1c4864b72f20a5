package otel

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks the imports of the otel module against their table.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", ".", "./fsm", "./worker", "./internal/call", "./internal/text"}, Brings: []string{"..."}, Never: []string{"go.opentelemetry.io/otel/sdk"}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "go.opentelemetry.io/otel"},
			{Module: "go.opentelemetry.io/otel/metric"},
			{Module: "go.opentelemetry.io/otel/trace"},
			{Module: "go.opentelemetry.io/otel/sdk", TestOnly: true},
			{Module: "go.opentelemetry.io/otel/sdk/metric", TestOnly: true},
			{Module: "go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp", TestOnly: true},
			{Module: "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp", TestOnly: true},
			{Module: "go.opentelemetry.io/proto/otlp", TestOnly: true},
			{Module: "google.golang.org/protobuf", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
