package isolate_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ahead is code that writes its message's id to state and returns it; it fails for
// "fails" and ends its process for "dies".
var ahead = map[string]string{
	"js": `function handle(m) {
	if (m.id === "fails") throw new Error("on purpose");
	if (m.id === "dies") return String(new ArrayBuffer(2**46).byteLength);
	state.put("id", m.id);
	console.log(m.id);
	return state.get("id") + (state.get("other") ?? "");
}`,
	"python": `
def handle(m):
    if m.id == "fails":
        raise ValueError("on purpose")
    if m.id == "dies":
        import os
        os._exit(3)
    state.put("id", m.id)
    print(m.id)
    return state.get("id") + (state.get("other") or "")
`,
}

// A child that goes ahead does for each message what it does without: the same answers,
// each with the state and the log of its own message, the same failures. A message that
// ends the child is the only one that suffers from it.
func TestAhead(t *testing.T) {
	w := newWall(t)
	for name, code := range ahead {
		t.Run(name, func(t *testing.T) {
			if w.engines[name] == nil {
				t.Skip("there is no python3 here")
			}
			var printed []string
			p, err := w.engines[name].Load(t.Context(), []byte(code), engine.Config{Worker: "w", Log: func(line string) { printed = append(printed, line) }})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			handle := func(id string) error {
				t.Helper()
				state := plainState{}
				printed = nil
				out, err := p.Handle(t.Context(), message(id), state)
				if err == nil && (len(out) != 1 || string(out[0].Data) != id || state["id"] != id || fmt.Sprint(printed) != "["+id+"]") {
					t.Errorf("message %s: %q with state %v, printed %q", id, out, state, printed)
				}
				return err
			}
			run := func(ids ...string) {
				t.Helper()
				var next []*engine.Message
				for _, id := range ids[1:] {
					next = append(next, message(id))
				}
				p.(engine.Forerunner).Ahead(func() []*engine.Message { return next })
				for _, id := range ids {
					err := handle(id)
					switch _, killed := errors.AsType[*engine.KilledError](err); {
					case id == "fails" && (err == nil || killed), id == "dies" && !killed:
						t.Errorf("message %s: %v", id, err)
					case id != "fails" && id != "dies" && err != nil:
						t.Errorf("message %s: %v", id, err)
					}
				}
			}
			run("1", "2", "3")
			run("4", "fails", "5", "6")
			run("7", "dies", "8")
			run("dies", "9")
			p.(engine.Forerunner).Ahead(func() []*engine.Message { return []*engine.Message{message("never asked for"), message("neither")} })
			if err := handle("10"); err != nil {
				t.Error(err)
			}
			run("11", "12")
		})
	}
}
