package dev

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestMain(m *testing.M) {
	Main()
	goleak.VerifyTestMain(m)
}

// What a host refuses to store for one message, this refuses too, and the message has no effect.
func TestBoundsAreThoseOfAHost(t *testing.T) {
	const code = `
def handle(message):
    what, n = message.text.split(" ")
    for i in range(int(n)):
        if what == "keys":
            state.put("key-%d" % i, "x")
        elif what == "bytes":
            state.put("key-%d" % i, "x" * 1000000)
        elif what == "timers":
            timers.set("timer-%d" % i, 1000, "x")
`
	r, err := Open(t.Context(), &operatorv1.WorkerSpec{
		Id: "w", MimeType: "text/x-starlark", Topic: "in", Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte(code)}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tt := range []struct {
		text  string
		wrong string // "" for a message that is handled
	}{
		{"keys 501", "state limit of 500 keys exceeded"},
		{"bytes 9", "state limit of 8388608 bytes exceeded"},
		{"timers 101", "timers limit of 100 for a key exceeded"},
		{"keys 500", ""},
		{"bytes 8", ""},
		{"timers 100", ""},
		{"timers 100", ""},
	} {
		result := r.Handle(t.Context(), nil, []byte(tt.text))
		isRight := strings.Contains(result.GetError(), tt.wrong) && (tt.wrong == "") == (result.GetError() == "")
		effects := len(result.GetChanges()) + len(result.GetTimers())
		if tt.wrong == "" {
			isRight = isRight && strings.HasSuffix(tt.text, fmt.Sprint(" ", effects))
		} else {
			isRight = isRight && effects == 0
		}
		if !isRight {
			t.Errorf("%s: %d effects, %q; want %q", tt.text, effects, result.GetError(), tt.wrong)
		}
	}
}
