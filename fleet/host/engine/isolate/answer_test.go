package isolate

import (
	"encoding/json"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
)

// FuzzPlain checks that no answer of a runner makes plain panic.
func FuzzPlain(f *testing.F) {
	for _, seed := range []string{`null`, `{"$bytes":"!"}`, `{"$bytes":"AA=="}`, `{"$type":"set"}`, `[{"$type":1}]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) == nil {
			_, _ = value.Outputs(plain(v))
		}
	})
}
