package call_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
func (w *wild) Error() string              { w.touch(); return w.text }
func (w *wild) Unwrap() error              { w.touch(); return w.inner }
func (w *wild) Is(target error) bool       { w.touch(); return w.isLike != nil && target == w.isLike }
func (w *wild) Format(f fmt.State, _ rune) { w.touch(); fmt.Fprint(f, "formatted") }

// As turns the error into a boxed 99.
func (w *wild) As(target any) bool {
	w.touch()
	b, ok := target.(*boxed)
	if ok {
		*b = boxed{99}
	}
	return ok
}

// boxed is a foreign error that is not a pointer.
type boxed struct{ code int }

func (b boxed) Error() string { return fmt.Sprint("code ", b.code) }

// crowd is a foreign error that wraps several, and cannot be compared.
type crowd []error

func (c crowd) Error() string   { return fmt.Sprintf("%d errors", len(c)) }
func (c crowd) Unwrap() []error { return c }

// What the library does with a kept error runs no method of the foreign error: it prints
// the text, and asks Is, Only, As and Same.
func TestTheLibraryRunsNoForeignCode(t *testing.T) {
	theirs := errors.New("theirs")
	deep := &wild{text: "deep", inner: theirs, isLike: net.ErrClosed}
	top := &wild{text: "top", inner: crowd{io.EOF, fmt.Errorf("wrapped: %w", deep), boxed{7}}}
	err := call.Do("unit", func() error { return errors.Join(top, context.Canceled) })
	top.shut.Store(true)
	deep.shut.Store(true)

	if got := fmt.Sprintf("%v|%s|%q|%+v", err, err, err, err); got != "top\ncontext canceled|top\ncontext canceled|\"top\\ncontext canceled\"|top\ncontext canceled" {
		t.Errorf("printed as %s", got)
	}
	wrapped := fmt.Errorf("x: %w", errors.Join(io.ErrNoProgress, err))
	for _, target := range []error{top, deep, theirs, io.EOF, context.Canceled, boxed{7}, net.ErrClosed} {
		if !call.Is(err, target) || !call.Is(wrapped, target) {
			t.Errorf("call.Is does not find %T", target)
		}
	}
	for _, target := range []error{io.ErrUnexpectedEOF, boxed{8}, errors.New("theirs"), os.ErrPermission, crowd{}} {
		if call.Is(err, target) {
			t.Errorf("it is %T", target)
		}
	}
	if found, ok := call.As[*wild](wrapped); !ok || found != top {
		t.Errorf("call.As found %p, want %p", found, top)
	}
	if b, ok := call.As[boxed](err); !ok || b.code != 7 {
		t.Errorf("call.As found %v", b)
	}
	if p, ok := call.As[*call.PanicError](err); ok {
		t.Errorf("call.As found %v", p)
	}
	if call.Only(err, context.Canceled) || !call.Only(err, context.Canceled, top) {
		t.Error("call.Only is wrong")
	}
	if again := call.Keep("unit", err); again != err { //nolint:errorlint // the very same
		t.Errorf("it was kept twice: %#v", again)
	}
	if n := top.touched.Load() + deep.touched.Load(); n != 0 {
		t.Errorf("its methods were called %d times", n)
	}
}

// The methods of a foreign error answer to a caller who asks.
func TestACallerGetsItsOwnError(t *testing.T) {
	foreign := errors.New("foreign")
	mine := &wild{text: "mine", isLike: foreign}
	err := fmt.Errorf("unit x: %w", call.Do("unit", func() error { return mine }))
	if !errors.Is(err, foreign) || !errors.Is(err, mine) || errors.Is(err, io.EOF) {
		t.Error("errors.Is does not ask the Is method")
	}
	var b boxed
	if !errors.As(err, &b) || b.code != 99 {
		t.Error("errors.As does not ask the As method")
	}
	if w := new(wild); !errors.As(err, &w) || w != mine {
		t.Error("errors.As does not find the error")
	}
	if got := fmt.Sprintf("%+v", errors.Unwrap(err)); got != "formatted" {
		t.Errorf("it is formatted as %s", got)
	}
	if got := fmt.Sprintf("%10.3s|%q", call.Keep("unit", boxed{3}), call.Keep("unit", boxed{3})); got != `       cod|"code 3"` {
		t.Errorf("an error without a Format method is formatted as %s", got)
	}
	if call.Is(err, foreign) {
		t.Error("call.Is called the Is method for a target that is not named with Sentinels")
	}
}

// An Is method answers to the library for the sentinels that a package has named.
func TestIsMethodsAnswerForSentinels(t *testing.T) {
	mine := errors.New("mine")
	call.Sentinels(mine)
	err := call.Do("unit", func() error { return &wild{isLike: mine} })
	if !call.Is(err, mine) || !call.Only(err, mine) {
		t.Error("the answer for a named sentinel was lost")
	}
}

type nilable struct{ text string }

func (n *nilable) Error() string { return n.text }

type tolerant struct{}

func (*tolerant) Error() string { return "fine with nil" }

type printsItself struct{ calls *atomic.Int64 }

func (p printsItself) String() string { p.calls.Add(1); return "itself" }

type endless struct{}

func (endless) Error() string   { return "endless" }
func (endless) Unwrap() []error { return []error{endless{}, endless{}} }

// panicky panics in the methods that errors.Is and errors.As call.
type panicky struct{ method string }

func (p panicky) Error() string { return "panics in " + p.method }
func (p panicky) Unwrap() error {
	if p.method == "Unwrap" {
		panic("unwrapped")
	}
	return io.EOF
}

func (p panicky) Is(error) bool {
	if p.method == "Is" {
		panic("asked")
	}
	return false
}

// endings are the ways in which a foreign function can end with a bad value.
var endings = []struct {
	name string
	fn   func() error
	text string
}{
	{"a nil error with a type", func() error { return (*nilable)(nil) }, "unit: panic: runtime error: invalid memory address or nil pointer dereference: the error that it returned, a *call_test.nilable, cannot be read"},
	{"a nil error of the standard library", func() error { return (*net.OpError)(nil) }, "<nil>"},
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
	{"a panic with an empty text", func() error { panic("") }, `unit: panic: ""`},
	{"a panic in Unwrap", func() error { return panicky{"Unwrap"} }, "panics in Unwrap"},
	{"a panic in Is", func() error { return panicky{"Is"} }, "panics in Is"},
	{"a nil PanicError", func() error { return (*call.PanicError)(nil) }, "cannot be read"},
	{"a PanicError of their own", func() error { return &call.PanicError{Name: "n", Value: evil{}} }, "n: panic: "},
	{"a nil AbandonedError", func() error { return (*call.AbandonedError)(nil) }, "cannot be read"},
	{"an error that wraps itself", func() error { w := &wild{text: "ring"}; w.inner = w; return w }, "ring"},
	{"a tree without an end", func() error { return endless{} }, "endless"},
	{"a million errors", func() error {
		all := make(crowd, 1<<20)
		for i := range all {
			all[i] = &nilable{"one"}
		}
		return all
	}, "1048576 errors"},
	{"an error with a long text", func() error { return errors.New(strings.Repeat("long ", 2<<20)) }, "… (10485760 bytes)"},
	{"a panic with a long text", func() error { panic(strings.Repeat("long ", 2<<20)) }, "… (10485760 bytes)"},
}

// The library can print and classify the error of a foreign function, in whichever way the
// function ended.
func TestEveryKeptErrorIsReadable(t *testing.T) {
	for _, c := range endings {
		t.Run(c.name, func(t *testing.T) {
			for how, err := range map[string]error{"Go": result(t, c.fn), "Do": call.Do("unit", c.fn)} {
				if err == nil || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 17<<10 {
					t.Fatalf("%s: the text is %.200q, want %q in it", how, fmt.Sprint(err), c.text)
				}
				if call.Is(err, os.ErrPermission) || call.Is(errors.Join(err, io.EOF), os.ErrPermission) {
					t.Errorf("%s: it is another error", how)
				}
				if op, ok := call.As[*net.OpError](err); ok && op == nil {
					t.Errorf("%s: As returns a nil pointer", how)
				}
				if call.Only(err, os.ErrPermission) {
					t.Errorf("%s: it consists of another error only", how)
				}
				if call.ExitStatus(err, 70) != 0 {
					t.Errorf("%s: it has an exit status", how)
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

// Take returns at once. The text of an error that blocks is not known, and waiting for it
// has an end.
func TestTake(t *testing.T) {
	if err := call.Take("cause", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	if err := call.Take("cause", context.Canceled); err != context.Canceled { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
	if err := call.Take("cause", boxed{3}); err.Error() != "code 3" || !errors.Is(err, boxed{3}) || !call.Is(err, boxed{3}) {
		t.Errorf("got %v", err)
	}
	if err := call.Take("cause", (*nilable)(nil)); !strings.Contains(err.Error(), "cause: panic: ") {
		t.Errorf("got %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		release := make(chan struct{})
		err := call.Take("cause", blocker{release})
		if took := time.Since(began); took != 0 || !call.Same(err, blocker{release}) {
			t.Errorf("it took %v", took)
		}
		for range 3 {
			if text := err.Error(); !strings.Contains(text, "call_test.blocker") || time.Since(began) != call.AnswerIn {
				t.Errorf("%q after %v", text, time.Since(began))
			}
		}
		if !call.Is(err, blocker{release}) || call.Is(err, io.EOF) {
			t.Error("it is not itself")
		}
		close(release)
		synctest.Wait()
		if err.Error() != "at last" {
			t.Errorf("once it can be read: %v", err)
		}
		if err := call.Take("cause", exiting{}); !strings.Contains(err.Error(), "not known") {
			t.Errorf("an error that exits its goroutine: %v", err)
		}
	})
}

func TestSameAndOnly(t *testing.T) {
	b := boxed{1}
	mine := &wild{text: "w", inner: b}
	kept := call.Keep("x", mine)
	if !call.Same(kept, mine) || !call.Same(mine, kept) || !call.Same(kept, kept) || call.Same(kept, b) {
		t.Error("Same does not see a kept error as the foreign one")
	}
	if call.Same(crowd{}, crowd{}) {
		t.Error("errors that cannot be compared are the same")
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{b, true},
		{&wild{inner: b}, true},
		{crowd{b, &wild{inner: b}}, true},
		{crowd{b, nil}, true},
		{crowd{b, io.EOF}, false},
		{crowd{}, false},
		{crowd{b, (*nilable)(nil)}, false},
		{crowd{b, panicky{"Unwrap"}}, false},
		{crowd{b, endless{}}, false},
		{io.EOF, false},
	} {
		if got := call.Only(call.Keep("x", c.err), nil, boxed{1}); got != c.want {
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

func BenchmarkKeep(b *testing.B) {
	for name, err := range map[string]error{
		"plain":   errors.New("boom"),
		"wrapped": fmt.Errorf("start: %w", fmt.Errorf("open: %w", fs.ErrNotExist)),
		"joined":  errors.Join(io.EOF, fmt.Errorf("a %w and b %w", io.EOF, context.Canceled)),
		"foreign": boxed{1},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = call.Keep("unit", err)
			}
		})
	}
}
