// Package enginetest is the conformance suite of engines. It checks what every
// engine must do with code that behaves and with code that misbehaves. Run it for
// an engine of your own too.
//
// Begin with [Run]. [State] is a state in memory, and [FuzzLoad] and [Bench] are for an
// engine's own tests.
package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
)

// Suite is one engine and code in its language.
type Suite struct {
	Engine engine.Engine
	// Code does what the last token of its message's topic, the mode, says.
	// [Modes] describes each mode.
	Code []byte
	// Bad has code that must not load, by the name of its fault.
	Bad map[string]BadCode
	// Without has the modes that the language cannot express, or the runtime cannot limit,
	// with the reason.
	Without map[string]string
}

// BadCode is code that cannot be loaded.
type BadCode struct{ Code, Fault string }

// Modes are what the code of a [Suite] must do, by name.
var Modes = map[string]string{
	"echo":    "publish the data as it is",
	"nothing": "return nothing",
	"two":     `publish "1" to out.a with the header K: v, and "2" to out.b`,
	"fields":  "publish worker|id|topic|attempt|fence|value of the header X|trace",
	"env":     "publish the value of the variable GREETING",
	"state":   `add 1 to the number in state under "n", delete "gone", publish the number`,
	"timer": `set the timer "a" for the time 2000000000 ms with the data "at", and "b" after 60000 ms, cancel "gone", ` +
		`publish name@due of all timers in a list`,
	"fired":     "publish name|due|attempt|data of the timer, or none",
	"badtimer":  "set a timer with the name of no bytes",
	"retry":     `fail with the text "try later"`,
	"reject":    `reject with the reason "never"`,
	"loop":      "never return",
	"alloc":     "hold more and more memory",
	"panic":     "crash, in the way that the language has",
	"wrongtype": "return a value that is not a message",
	"print":     "print 8 MiB and echo",
	"flood":     "publish 8 MiB",
	"badkey":    `put the state under "a b"`,
	"badtopic":  `publish to "out.*"`,
	"fetch": `POST the data to https://example.com/data with the header K: v, and publish the status, ` +
		`the header Answer and the body`,
	"badfetch": `GET https://example.com/forbidden, and fail with the reason`,
}

// Limits has limits that are small where code breaks them quickly. Code that ends by itself
// gets more time than any machine needs.
var Limits = engine.Limits{Time: time.Minute, Memory: 64 << 20, Output: 1 << 20}

// shortTime is the time limit for code that does not end by itself. It is longer on a
// machine on which the program needs more than a tenth of it to start again.
const shortTime = 3 * time.Second

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	for name, bad := range s.Bad {
		t.Run("bad/"+name, func(t *testing.T) {
			load := time.Minute
			if strings.Contains(bad.Fault, "load time limit") {
				load = time.Second
			}
			p, err := s.Engine.Load(t.Context(), []byte(bad.Code), engine.Config{Worker: "w", Limits: engine.Limits{Load: load}})
			if !errors.Is(err, engine.ErrBadCode) || !strings.Contains(err.Error(), bad.Fault) {
				t.Errorf("Load: %v, want bad code with %q", err, bad.Fault)
			}
			if p != nil {
				t.Error("Load returned a program too")
			}
		})
	}
	r := &runner{Suite: s, state: NewState()}
	r.load(t, Limits)
	r.behaves(t)
	r.misbehaves(t)
	r.close(t)
	short := Limits
	short.Time = max(shortTime, 10*r.restart)
	r.load(t, short)
	r.fails(t, "loop", limit("time"))
	r.close(t)
}

type runner struct {
	Suite
	state   *State
	program engine.Program
	limits  engine.Limits // of the program
	fired   *engine.Fired // of the next messages
	restart time.Duration // the longest that the program took to answer after a failure
}

func (r *runner) load(t *testing.T, limits engine.Limits) {
	p, err := r.Engine.Load(t.Context(), r.Code, engine.Config{
		Worker: "w",
		Limits: limits,
		Env:    map[string]string{"GREETING": "h\u00e9llo, \"world\"\n"},
	})
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	r.program, r.limits = p, limits
}

func (r *runner) close(t *testing.T) {
	if err := errors.Join(r.program.Close(), r.program.Close()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func (r *runner) handle(t *testing.T, mode, data string) ([]engine.Output, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), r.limits.Time)
	defer cancel()
	return r.program.Handle(ctx, &engine.Message{
		Worker: "w", ID: "S:7", Topic: "test." + mode, Attempt: 2, Fence: 1 << 40,
		Header: map[string][]string{"X": {"y"}, "Traceparent": {traceparent}}, Data: []byte(data), Timer: r.fired,
	}, r.state)
}

// behaves checks the results of code that does what it should.
func (r *runner) behaves(t *testing.T) {
	wants := func(mode, data string, want ...engine.Output) {
		t.Run(mode, func(t *testing.T) {
			r.skip(t, mode)
			got, err := r.handle(t, mode, data)
			if err != nil || len(got) != len(want) {
				t.Fatalf("%d outputs, %v; want %d", len(got), err, len(want))
			}
			for i := range want {
				sameHeader := len(want[i].Header) == 0 || reflect.DeepEqual(got[i].Header, want[i].Header)
				if got[i].Topic != want[i].Topic || !bytes.Equal(got[i].Data, want[i].Data) || !sameHeader {
					t.Errorf("output %d: %+v, want %+v", i, got[i], want[i])
				}
			}
		})
	}
	text := func(s string) engine.Output { return engine.Output{Data: []byte(s)} }
	wants("echo", "h\xc3\xa9llo", text("h\xc3\xa9llo"))
	wants("echo", "\x00\xff\xfe", text("\x00\xff\xfe"))
	wants("nothing", "x")
	wants("two", "",
		engine.Output{Topic: "out.a", Data: []byte("1"), Header: map[string][]string{"K": {"v"}}},
		engine.Output{Topic: "out.b", Data: []byte("2")})
	wants("env", "", text("h\u00e9llo, \"world\"\n"))
	wants("fields", "", text(fmt.Sprintf("w|S:7|test.fields|2|%d|y|%s", uint64(1<<40), traceparent)))
	wants("fetch", "h\u00e9", text("201 yes POST https://example.com/data v h\u00e9"))
	_ = r.state.Put(t.Context(), "gone", []byte("x"))
	wants("state", "", text("1"))
	wants("state", "", text("2"))
	if _, ok, _ := r.state.Get(t.Context(), "gone"); ok && r.Without["state"] == "" {
		t.Error("state: a deleted key is still there")
	}
	_ = r.state.SetTimer(t.Context(), engine.Timer{Name: "gone", After: time.Second})
	wants("timer", "", text("a@2000000000 b@1060000"))
	if got := r.state.Data("a") + r.state.Data("b"); got != "at" && r.Without["timer"] == "" {
		t.Errorf("timer: the data are %q", got)
	}
	wants("fired", "x", text("none"))
	r.fired = &engine.Fired{Name: "t \u00e9", Due: time.UnixMilli(1234567890123)}
	wants("fired", "x", text("t \u00e9|1234567890123|2|x"))
	r.fired = nil
}

// fails checks the error of code in a mode in which it fails, and that the
// program works afterwards.
func (r *runner) fails(t *testing.T, mode string, check func(error) bool) {
	t.Run(mode, func(t *testing.T) {
		r.skip(t, mode)
		outputs, err := r.handle(t, mode, "x")
		if err == nil || !check(err) {
			t.Errorf("the error is %v", err)
		}
		if len(outputs) > 0 && !errors.Is(err, engine.ErrLimit) && mode != "badtopic" {
			t.Errorf("it has %d outputs beside an error", len(outputs))
		}
		failed := time.Now()
		got, err := r.handle(t, "echo", "still there")
		// The program starts again, which may take longer than the short limit.
		for n := 0; n < 20 && limit("time")(err); n++ {
			got, err = r.handle(t, "echo", "still there")
		}
		if err != nil || len(got) != 1 || string(got[0].Data) != "still there" {
			t.Errorf("the program does not work afterwards: %v, %v", got, err)
		}
		r.restart = max(r.restart, time.Since(failed))
	})
}

// limit returns a function that accepts a [engine.LimitError] for any of these
// limits.
func limit(what ...string) func(error) bool {
	return func(err error) bool {
		var l *engine.LimitError
		return errors.As(err, &l) && slices.Contains(what, l.What)
	}
}

// misbehaves checks the errors of code that fails by itself.
func (r *runner) misbehaves(t *testing.T) {
	fails := func(mode string, check func(error) bool) { r.fails(t, mode, check) }
	var rejected *engine.RejectError
	ordinary := func(err error) bool { return !errors.As(err, &rejected) && !errors.Is(err, engine.ErrLimit) }
	fails("retry", func(err error) bool { return ordinary(err) && strings.Contains(err.Error(), "try later") })
	fails("reject", func(err error) bool { return errors.As(err, &rejected) && rejected.Reason == "never" })
	fails("panic", ordinary)
	fails("wrongtype", ordinary)
	fails("print", limit("output"))
	fails("flood", limit("output"))
	fails("badkey", func(err error) bool { return ordinary(err) && strings.Contains(err.Error(), `"a b"`) })
	fails("badtimer", func(err error) bool { return ordinary(err) && strings.Contains(err.Error(), "timer name") })
	fails("badtopic", func(err error) bool { return ordinary(err) && strings.Contains(err.Error(), `"out.*"`) })
	fails("badfetch", func(err error) bool { return ordinary(err) && strings.Contains(err.Error(), "it is forbidden") })
	fails("alloc", limit("memory"))
}

func (r *runner) skip(t *testing.T, mode string) {
	if reason := r.Without[mode]; reason != "" {
		t.Skip(reason)
	}
}

// State is an engine.State in memory. It checks keys, and has no fencing. It has timers too, and
// there it always is 1,000,000 ms after the beginning of 1970.
type State struct{ effects.Handle }

// NewState returns an empty state.
func NewState() *State {
	return &State{effects.Handle{Source: empty{}, MaxTimers: effects.MaxTimers}}
}

// empty is where nothing is stored.
type empty struct{}

func (empty) Value(context.Context, string) ([]byte, bool, error) { return nil, false, nil }
func (empty) Now(context.Context) time.Time                       { return time.UnixMilli(1_000_000) }
func (empty) Timers(context.Context) (map[string]engine.Timer, int, error) {
	return make(map[string]engine.Timer), 0, nil
}

// Data returns the data of a timer.
func (s *State) Data(timer string) string {
	for _, c := range s.TimerChanges() {
		if c.Name == timer {
			return string(c.Timer.Data)
		}
	}
	return ""
}

// Fetch answers 201 with what it was asked, and refuses every path but /data.
func (s *State) Fetch(_ context.Context, r *engine.Request) (*engine.Response, error) {
	if r.URL != "https://example.com/data" {
		return nil, errors.New("fetch: it is forbidden")
	}
	said := fmt.Sprintf("%s %s %s %s", r.Method, r.URL, strings.Join(r.Header["K"], ","), r.Body)
	return &engine.Response{
		Status: 201,
		URL:    r.URL,
		Header: map[string][]string{"Answer": {"yes"}},
		Body:   []byte(said),
	}, nil
}
