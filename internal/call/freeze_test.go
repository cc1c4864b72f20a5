package call_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// wild is a foreign error. It counts the calls of its methods after it was shut.
type wild struct {
	text    string
	inner   error
	isLike  error // what its Is method accepts
	shut    atomic.Bool
	touched atomic.Int64
}

func (w *wild) touch() {
	if w.shut.Load() {
		w.touched.Add(1)
	}
}
func (w *wild) Error() string                { w.touch(); return w.text }
func (w *wild) Unwrap() error                { w.touch(); return w.inner }
func (w *wild) Is(target error) bool         { w.touch(); return w.isLike != nil && target == w.isLike }
func (w *wild) As(any) bool                  { w.touch(); return false }
func (w *wild) Format(f fmt.State, _ rune)   { w.touch(); fmt.Fprint(f, "formatted") }
func (w *wild) GoString() string             { w.touch(); return "go" }
func (w *wild) MarshalText() ([]byte, error) { w.touch(); return []byte("marshalled"), nil }

// boxed is a foreign error that is not a pointer.
type boxed struct{ code int }

func (b boxed) Error() string { return fmt.Sprint("code ", b.code) }

// crowd is a foreign error that wraps several, and cannot be compared.
type crowd []error

func (c crowd) Error() string   { return fmt.Sprintf("%d errors", len(c)) }
func (c crowd) Unwrap() []error { return c }

// A frozen error has the text and the identity of the foreign error, and calls
// none of its methods again.
func TestAFrozenErrorRunsNoForeignCode(t *testing.T) {
	theirs := errors.New("theirs")
	deep := &wild{text: "deep", inner: theirs, isLike: fs.ErrNotExist}
	top := &wild{text: "top", inner: crowd{io.EOF, fmt.Errorf("wrapped: %w", deep), boxed{7}}}
	err := call.Do("unit", func() error { return errors.Join(top, context.Canceled) })
	top.shut.Store(true)
	deep.shut.Store(true)

	if got := fmt.Sprintf("%v|%s|%q|%+v", err, err, err, err); got != "top\ncontext canceled|top\ncontext canceled|\"top\\ncontext canceled\"|top\ncontext canceled" {
		t.Errorf("printed as %s", got)
	}
	for _, target := range []error{top, deep, theirs, io.EOF, context.Canceled, boxed{7}, fs.ErrNotExist} {
		if !errors.Is(err, target) || !errors.Is(fmt.Errorf("x: %w", errors.Join(io.ErrNoProgress, err)), target) {
			t.Errorf("errors.As no longer finds %T", target)
		}
	}
	for _, target := range []error{io.ErrUnexpectedEOF, boxed{8}, errors.New("theirs"), os.ErrPermission} {
		if errors.Is(err, target) {
			t.Errorf("it is %v", target)
		}
	}
	if errors.Is(err, crowd{}) {
		t.Error("errors.Is accepts an error that cannot be compared")
	}
	var found *wild
	if !errors.As(err, &found) || found != top {
		t.Errorf("errors.As found %p, want %p", found, top)
	}
	if b, ok := errors.AsType[boxed](err); !ok || b.code != 7 {
		t.Errorf("errors.AsType found %v", b)
	}
	var many crowd
	if !errors.As(err, &many) || len(many) != 3 {
		t.Errorf("errors.As found %d errors", len(many))
	}
	if p := new(call.PanicError); errors.As(err, &p) {
		t.Errorf("errors.As found %v", p)
	}
	if again := call.Freeze("unit", err); again != err { //nolint:errorlint // the very same
		t.Errorf("it was frozen twice: %#v", again)
	}
	if n := top.touched.Load() + deep.touched.Load(); n != 0 {
		t.Errorf("its methods were called %d times after it was frozen", n)
	}
}

// A frozen error keeps the answer of an Is method to a sentinel named with
// Sentinels, and to no other target. The concrete error still answers.
func TestForeignIsMethodsAnswerForSentinelsOnly(t *testing.T) {
	mine, foreign := errors.New("mine"), errors.New("foreign")
	call.Sentinels(mine)
	if err := call.Do("unit", func() error { return &wild{isLike: mine} }); !errors.Is(err, mine) {
		t.Error("the answer for a named sentinel was lost")
	}
	err := call.Do("unit", func() error { return &wild{isLike: foreign} })
	if errors.Is(err, foreign) {
		t.Error("the foreign Is method was called")
	}
	if w := new(wild); !errors.As(err, &w) || !errors.Is(w, foreign) {
		t.Error("the concrete error does not answer")
	}
}

type nilable struct{ text string }

func (n *nilable) Error() string { return n.text }

type tolerant struct{}

func (*tolerant) Error() string { return "fine with nil" }

type printsItself struct{ calls *atomic.Int64 }

func (p printsItself) String() string { p.calls.Add(1); return "itself" }

// endings are the ways in which a foreign function can end with a bad value.
var endings = []struct {
	name string
	fn   func() error
	text string
}{
	{"a nil error with a type", func() error { return (*nilable)(nil) }, "unit: panic: runtime error: invalid memory address or nil pointer dereference: the error that it returned, a *call_test.nilable, cannot be read"},
	{"a nil error of the standard library", func() error { return (*net.OpError)(nil) }, "cannot be read"},
	{"a nil error that can be read", func() error { return (*tolerant)(nil) }, "fine with nil"},
	{"half an error", func() error { return &fs.PathError{Op: "open", Path: "x"} }, "cannot be read"},
	{"a wrapped nil error", func() error { return fmt.Errorf("wrapped: %w", (*nilable)(nil)) }, "wrapped: "},
	{"a joined nil error", func() error { return errors.Join(io.EOF, (*nilable)(nil)) }, "cannot be read"},
	{"a wrapped nil error of the standard library", func() error { return &wild{text: "top", inner: (*net.OpError)(nil)} }, "top"},
	{"a panic with a nil error", func() error { panic((*nilable)(nil)) }, "unit: panic: a nil *call_test.nilable"},
	{"a panic with a nil error of the standard library", func() error { panic((*net.OpError)(nil)) }, "unit: panic: a nil *net.OpError"},
	{"a panic with an error around a nil one", func() error { panic(&net.OpError{Op: "dial", Err: (*nilable)(nil)}) }, "unit: panic: "},
	{"a panic in an error", func() error { return evil{} }, "unit: panic: in Error: the error that it returned, a call_test.evil, cannot be read"},
	{"a panic with an error that panics", func() error { panic(evil{}) }, "unit: panic: "},
	{"a nil PanicError", func() error { return (*call.PanicError)(nil) }, "cannot be read"},
	{"a PanicError of their own", func() error { return &call.PanicError{Name: "n", Value: evil{}} }, "n: panic: "},
	{"a nil AbandonedError", func() error { return (*call.AbandonedError)(nil) }, "cannot be read"},
	{"an error that wraps itself", func() error { w := &wild{text: "ring"}; w.inner = w; return w }, "ring"},
	{"a path error that wraps itself", func() error { p := &fs.PathError{}; p.Err = errors.Join(p); return p }, "a *fs.PathError that wraps itself"},
	{"a tree without an end", func() error { return endless{} }, "endless"},
	{"a million errors", func() error {
		all := make(crowd, 1<<20)
		for i := range all {
			all[i] = &nilable{"one"}
		}
		return all
	}, "1048576 errors"},
	{"a million joined errors", func() error {
		all := make([]error, 1<<20)
		for i := range all {
			all[i] = io.EOF
		}
		return errors.Join(all...)
	}, "EOF\nEOF"},
	{"an error with a long text", func() error { return errors.New(strings.Repeat("long ", 2<<20)) }, "… (10485760 bytes)"},
	{"a panic with a long text", func() error { panic(strings.Repeat("long ", 2<<20)) }, "… (10485760 bytes)"},
}

type endless struct{}

func (endless) Error() string   { return "endless" }
func (endless) Unwrap() []error { return []error{endless{}, endless{}} }

// Any goroutine can print, compare and unwrap the error of a foreign function, in
// whichever way the function ended.
func TestEveryFrozenErrorIsReadable(t *testing.T) {
	for _, c := range endings {
		t.Run(c.name, func(t *testing.T) {
			for how, err := range map[string]error{"Go": result(t, c.fn), "Do": call.Do("unit", c.fn)} {
				if err == nil || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 5<<20 {
					t.Fatalf("%s: the text is %.200q, want %q in it", how, fmt.Sprint(err), c.text)
				}
				if errors.Is(err, os.ErrPermission) || errors.Is(errors.Join(err, io.EOF), os.ErrPermission) {
					t.Errorf("%s: it is another error", how)
				}
				var op *net.OpError
				if errors.As(err, &op) && op == nil {
					t.Errorf("%s: errors.As returns a nil pointer", how)
				}
				if call.Only(err, func(e error) bool { return call.Same(e, os.ErrPermission) }) {
					t.Errorf("%s: it consists of another error only", how)
				}
			}
		})
	}
}

// A panic's value is printed once, on the goroutine that panicked.
func TestThePanicValueIsReadOnce(t *testing.T) {
	var calls atomic.Int64
	err := result(t, func() error { panic(printsItself{&calls}) })
	for range 3 {
		if err.Error() != "unit: panic: itself" {
			t.Errorf("got %v", err)
		}
	}
	var p *call.PanicError
	if !errors.As(err, &p) || p.Text() != "itself" || p.Value != (printsItself{&calls}) || calls.Load() != 1 {
		t.Errorf("%#v, printed %d times", p, calls.Load())
	}
}

// A method that blocks, or ends its goroutine, affects only the goroutine of the
// call.
func TestAMethodThatBlocksIsACallThatDoesNotReturn(t *testing.T) {
	release := make(chan struct{})
	for name, fn := range map[string]func() error{
		"an error":          func() error { return blocker{release} },
		"a panic's value":   func() error { panic(blocker{release}) },
		"an error it wraps": func() error { return fmt.Errorf("x: %w", &wild{inner: blocker{release}}) },
	} {
		over := make(chan struct{})
		close(over)
		c := call.Start(name, fn)
		var left *call.AbandonedError
		for left == nil || !strings.Contains(left.Where, "blocker") {
			if err := c.Wait(over, 0); !errors.As(err, &left) || left.Name != name {
				t.Fatalf("%s: %v", name, err)
			}
			runtime.Gosched()
		}
		defer func() { <-c.Done() }()
	}
	close(release)
	if err := result(t, func() error { return exiting{} }); !errors.Is(err, call.ErrGoexit) {
		t.Errorf("an error that exits its goroutine: %v", err)
	}
}

type blocker struct{ release chan struct{} }

func (b blocker) Error() string { <-b.release; return "at last" }
func (b blocker) Unwrap() error { <-b.release; return nil }

type exiting struct{}

func (exiting) Error() string { runtime.Goexit(); return "" }

// Take reads an error in a goroutine of its own, and not for ever.
func TestTake(t *testing.T) {
	if err := call.Take("cause", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	if err := call.Take("cause", context.Canceled); err != context.Canceled { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
	if err := call.Take("cause", boxed{3}); err.Error() != "code 3" || !errors.Is(err, boxed{3}) {
		t.Errorf("got %v", err)
	}
	if err := call.Take("cause", (*nilable)(nil)); !strings.Contains(err.Error(), "cause: panic: ") {
		t.Errorf("got %v", err)
	}
}

func TestSameAndOnly(t *testing.T) {
	b := boxed{1}
	frozen := call.Freeze("x", &wild{text: "w", inner: b})
	w := new(wild)
	if !errors.As(frozen, &w) || !call.Same(frozen, w) || !call.Same(w, frozen) || !call.Same(frozen, frozen) || call.Same(frozen, b) {
		t.Error("Same does not see a frozen error as the foreign one")
	}
	if call.Same(crowd{}, crowd{}) {
		t.Error("errors that cannot be compared are the same")
	}
	isB := func(e error) bool { return call.Same(e, boxed{1}) }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{b, true},
		{&wild{inner: b}, true},
		{crowd{b, &wild{inner: b}}, true},
		{crowd{b, nil}, true},
		{crowd{b, io.EOF}, false},
		{crowd{}, false},
		{crowd{b, (*nilable)(nil)}, false}, // an error that Freeze leaves out
		{io.EOF, false},
	} {
		if got := call.Only(call.Freeze("x", c.err), isB); got != c.want {
			t.Errorf("Only of %T %v is %v", c.err, c.err, got)
		}
	}
}

func TestIsNil(t *testing.T) {
	for _, v := range []any{nil, (*wild)(nil), error((*wild)(nil)), (func())(nil), map[int]int(nil), crowd(nil), (chan int)(nil)} {
		if !call.IsNil(v) {
			t.Errorf("%T is not nil", v)
		}
	}
	for _, v := range []any{0, "", wild{}.inner == nil, new(wild), func() {}, boxed{}, crowd{}} {
		if call.IsNil(v) {
			t.Errorf("%T is nil", v)
		}
	}
}

var common = map[string]error{
	"plain":     errors.New("boom"),
	"wrapped":   fmt.Errorf("start: %w", fmt.Errorf("open: %w", fs.ErrNotExist)),
	"joined":    errors.Join(io.EOF, fmt.Errorf("a %w and b %w", io.EOF, context.Canceled)),
	"cancelled": context.Canceled,
	"deadline":  context.DeadlineExceeded,
	"path":      &fs.PathError{Op: "open", Path: "/etc/x", Err: syscall.ENOENT},
	"dial":      &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{Port: 1}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
	"dns":       &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "x"}},
	"closed":    &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed},
	"timeout":   &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded},
	"exit":      &exec.ExitError{},
	"frozen":    call.Freeze("x", boxed{1}),
	"panic":     call.Do("x", func() error { panic("boom") }),
	"abandoned": &call.AbandonedError{Name: "x"},
}

// Freeze returns errors of the standard library and our own unchanged, without
// allocating.
func TestCommonErrorsPassAsTheyAre(t *testing.T) {
	for name, err := range common {
		if got := call.Freeze("unit", err); got != err { //nolint:errorlint // the very same
			t.Errorf("%s: %#v became %#v", name, err, got)
		}
		if n := testing.AllocsPerRun(100, func() { _ = call.Freeze("unit", err) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkFreeze(b *testing.B) {
	for name, err := range common {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = call.Freeze("unit", err)
			}
		})
	}
	for name, err := range map[string]error{"foreign": boxed{1}, "foreign with Is": &wild{text: "w", inner: io.EOF}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = call.Freeze("unit", err)
			}
		})
	}
}
