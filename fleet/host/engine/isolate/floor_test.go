package isolate_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
)

// The kernel of the tests has the whole floor.
func TestNothingOfTheFloorIsMissing(t *testing.T) {
	children, err := isolate.New(isolate.Config{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	missing, err := children.Missing(t.Context())
	if err != nil || len(missing) > 0 {
		t.Errorf("missing: %q, %v", missing, err)
	}
}
