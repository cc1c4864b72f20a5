package wasm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	isolate.Main(New())
	goleak.VerifyTestMain(m)
}

// guest builds the Go program in testdata, once.
var guest = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "modes.wasm")
	cmd := exec.Command("go", "build", "-o", out, "main.go")
	cmd.Dir = filepath.Join("testdata", "modes")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWORK=off", "GOFLAGS=-p=2")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, text)
	}
	return os.ReadFile(out)
})

// module returns a module in the binary format (WebAssembly 2.0, chapter 5). Its
// function _start has this body. It imports nothing.
func module(body string) string {
	section := func(id byte, content string) string {
		return string(id) + string(rune(len(content))) + content
	}
	code := "\x00" + body + "\x0b"
	return "\x00asm\x01\x00\x00\x00" +
		section(1, "\x01\x60\x00\x00") + // a type without parameters or results
		section(3, "\x01\x00") + // one function of that type
		section(5, "\x01\x00\x01") + // a memory of one page
		section(7, "\x02\x06_start\x00\x00\x06memory\x02\x00") +
		section(10, "\x01"+string(rune(len(code)))+code)
}

// shared keeps what it compiled: the race detector makes compiling slow.
var shared = New()

func TestConformance(t *testing.T) {
	code, err := guest()
	if err != nil {
		t.Fatal(err)
	}
	suite := enginetest.Suite{
		Engine: shared,
		Code:   code,
		Bad: map[string]enginetest.BadCode{
			"text":      {Code: "(module)", Fault: "compile"},
			"truncated": {Code: string(code[:1000]), Fault: "compile"},
			"no start":  {Code: "\x00asm\x01\x00\x00\x00", Fault: "no _start"},
		},
	}
	t.Run("in this process", func(t *testing.T) { enginetest.Run(t, suite) })
	t.Run("in a child", func(t *testing.T) {
		if testing.Short() {
			t.Skip("each child compiles the module for itself, for seconds: this runs without -short")
		}
		children, err := isolate.New(isolate.Config{})
		if err != nil {
			t.Fatal(err)
		}
		suite.Engine = children.Engine(suite.Engine.MIMETypes()[0], suite.Engine)
		enginetest.Run(t, suite)
	})
}

// TestSandbox checks that a pointer outside of memory fails the call, and that a
// module has no files.
func TestSandbox(t *testing.T) {
	code, err := guest()
	if err != nil {
		t.Fatal(err)
	}
	p, err := shared.Load(t.Context(), code, engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Handle(t.Context(), &engine.Message{Topic: "test.pointer"}, enginetest.NewState())
	if err == nil || !strings.Contains(err.Error(), "not in the module's memory") {
		t.Errorf("a pointer outside of memory: %v", err)
	}
	out, err := p.Handle(t.Context(), &engine.Message{Topic: "test.cat"}, enginetest.NewState())
	if err != nil || len(out) != 1 || !strings.HasPrefix(string(out[0].Data), "[]") {
		t.Errorf("a file: %v, %v", out, err)
	}
}

// TestTinyModule checks that a module needs only _start and a memory, and that a
// module that traps fails.
func TestTinyModule(t *testing.T) {
	for body, fails := range map[string]bool{"": false, "\x00": true /* unreachable */} {
		p, err := New().Load(t.Context(), []byte(module(body)), engine.Config{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Handle(t.Context(), &engine.Message{Data: []byte("x")}, enginetest.NewState())
		if len(out) != 0 || (err != nil) != fails {
			t.Errorf("body %q: %v, %v", body, out, err)
		}
		_ = p.Close()
	}
}

func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{"", "A: b\nA: c\r\n\n", "no colon", ": ", "A:\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		h, err := parseHeaders(lines)
		if err == nil {
			_ = engine.Limits{}.WithDefaults().Check([]engine.Output{{Header: h}})
		}
	})
}

// FuzzLoad checks that no bytes end the process while they are compiled.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(module("")))
	f.Add([]byte(module("\x00")))
	f.Add([]byte("\x00asm\x01\x00\x00\x00"))
	enginetest.FuzzLoad(f, New())
}

func BenchmarkHandle(b *testing.B) { enginetest.Bench(b, New(), module("")) }

func BenchmarkHandleGo(b *testing.B) {
	code, err := guest()
	if err != nil {
		b.Fatal(err)
	}
	enginetest.Bench(b, New(), string(code))
}

// kept is a module whose function handle counts its messages in a global. It returns 7
// for the second message, and traps for the third.
const kept = "\x00asm\x01\x00\x00\x00\x01\x05\x01`\x00\x01\x7f\x03\x02\x01\x00\x05\x03\x01\x00\x01\x06\x06\x01\x7f\x01A\x00\x0b\x07\x13\x02\x06handle\x00\x00\x06memory\x02\x00\x0a!\x01\x1f\x00#\x00A\x01j$\x00#\x00A\x02F\x04@A\x07\x0f\x0b#\x00A\x03F\x04@\x00\x0bA\x00\x0b"

// A module with a function handle keeps its instance from one message to the next, until
// it traps.
func TestInstanceIsKept(t *testing.T) {
	for _, disposable := range []bool{false, true} {
		p, err := New().Load(t.Context(), []byte(kept), engine.Config{Worker: "w", Disposable: disposable})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"", "exit status 7", "unreachable", "", "exit status 7", "unreachable", ""} {
			_, err := p.Handle(t.Context(), &engine.Message{}, enginetest.NewState())
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("message %d: %v, want %q", i, err, want)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
