package enginetest

import (
	"errors"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// FuzzLoad feeds code to an engine. It checks that nothing panics, and that every
// error of Load wraps engine.ErrBadCode. The caller adds the seeds.
func FuzzLoad(f *testing.F, e engine.Engine) {
	f.Fuzz(func(t *testing.T, code []byte) {
		limits := engine.Limits{Load: time.Second, Memory: 64 << 20}
		p, err := e.Load(t.Context(), code, engine.Config{Worker: "w", Limits: limits})
		switch {
		case err == nil:
			_ = p.Close()
		case !errors.Is(err, engine.ErrBadCode):
			t.Errorf("Load: %v", err)
		}
	})
}

// Bench measures a call of code that does nothing.
func Bench(b *testing.B, e engine.Engine, code string) {
	p, err := e.Load(b.Context(), []byte(code), engine.Config{Worker: "w"})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	m := &engine.Message{Worker: "w", ID: "S:1", Topic: "test.nothing", Attempt: 1, Fence: 1, Data: []byte("hello")}
	s := NewState()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Handle(b.Context(), m, s); err != nil {
			b.Fatal(err)
		}
	}
}
