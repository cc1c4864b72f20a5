package isolate_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/internal/attacks"
)

// larger is code that gives the host more than its limits allow, past the checks of the runner
// in its own process.
var larger = map[string]string{
	"an answer":       "import __main__\n__main__.plain = lambda v, level=0: v\n__main__.limit_output = 1 << 60\nreturn 'x' * (32 << 20)",
	"many values":     "import __main__\n__main__.plain = lambda v, level=0: v\n__main__.limit_output = 1 << 60\nreturn [{}] * 500000",
	"parts":           "import __main__\nfor i in range(40):\n    __main__.query.send({'print': 'x' * (1 << 20)})\n__main__.query.send({'print': 'x' * (32 << 20)})",
	"an answer ahead": "import __main__\n__main__.query.send({'answer': {'outputs': [{}] * 500000}})",
	"a value":         "import __main__\n__main__.limit_call = 1 << 60\nstate.put('k', b'x' * (24 << 20))",
	"a header":        "import __main__\n__main__.ask('fetch', {'request': {'url': 'http://x', 'headers': {str(i): [] for i in range(100000)}}})",
}

// A host reads and decodes what a child sends only within the limits of its worker. So an answer
// that breaks them costs the host no memory, and the error says what was broken.
func TestAnswersOfChildrenAreBounded(t *testing.T) {
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	limits := engine.Limits{Time: time.Minute, Load: time.Minute, Memory: 512 << 20, Output: 1 << 20, Outputs: 1000}
	for name, body := range larger {
		t.Run(name, func(t *testing.T) {
			p, err := w.engines["python"].Load(t.Context(), attacks.Handler("python", body), engine.Config{Worker: "bad", Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out, err := p.Handle(t.Context(), message("1"), enginetest.NewState())
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("it returned %d outputs", len(out))
			}
			t.Logf("%.300v", err)
			const most = 64 << 20 // garbage too: 40 lines of 1 MiB are copied once
			if name != "parts" && name != "a header" && !errors.Is(err, engine.ErrLimit) {
				t.Errorf("the error names no limit: %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; name != "parts" && took > most/4 || took > 3*most {
				t.Errorf("the host has allocated %d MiB for it", took>>20)
			}
		})
	}
}
