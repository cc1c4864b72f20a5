//go:build unix

package procpool_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// arrays is a pool of testdata/arrays.py.
func arrays(t *testing.T, python string) *procpool.Pool {
	t.Helper()
	return startPool(t, func() *exec.Cmd {
		cmd := exec.Command(python, "testdata/arrays.py")
		cmd.Env = append(os.Environ(), "PYTHONPATH=sdk/python")
		return cmd
	}, nil)
}

// form is a value with bytes.
type form struct{ payload, result, data string }

func (f form) check(t *testing.T, p *procpool.Pool, data []byte) {
	t.Helper()
	got, bytes, err := p.DoBytes(within(t), json.RawMessage(f.payload), data)
	if err != nil || !sameJSON(string(got), f.result) || string(bytes) != f.data {
		t.Errorf("%s: %s, %q, %v, want %s, %q", f.payload, got, bytes, err, f.result, f.data)
	}
}

// TestPythonSendsBytesOfEveryForm has bytes that are none, and bytes that do not lie one after
// the other.
func TestPythonSendsBytesOfEveryForm(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	p := arrays(t, "python3")
	for _, f := range []form{
		{`"nothing"`, `{"n":0}`, ""},
		{`"steps"`, `null`, "abc"},
		{`"rows"`, `null`, "abcdef"},
	} {
		f.check(t, p, nil)
	}
}

// pythonWithNumpy returns a Python of this machine that has numpy. The one of apt is not
// always the first in PATH.
func pythonWithNumpy(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import numpy").Run() == nil {
			return name
		}
	}
	t.Skip("no Python on this machine has numpy: apt-get install python3-numpy")
	return ""
}

// TestArraysOfNumpyTravel sends arrays of numpy in both directions.
func TestArraysOfNumpyTravel(t *testing.T) {
	p := arrays(t, pythonWithNumpy(t))
	for _, f := range []form{
		{`"no detections"`, `{"dtype":"<f4","shape":[0,4]}`, ""},
		{`"every second column"`, `{"dtype":"|u1","shape":[3,2],"of":"columns"}`, "\x00\x02\x04\x06\x08\x0a"},
		{`"complex"`, `{"dtype":"<c8","shape":[1]}`, "\x00\x00\x00\x00\x00\x00\x80\x3f"},
		{`"times"`, `{"dtype":"<M8[D]","shape":[2]}`, "\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"},
	} {
		f.check(t, p, nil)
	}
	form{`{"dtype":"<i2","shape":[2,1]}`, `{"dtype":"<i2","shape":[2,1]}`, "\x02\x00\x04\x00"}.check(t, p, []byte("\x01\x00\x02\x00"))
	form{`{"dtype":"<f4","shape":[0,4]}`, `{"dtype":"<f4","shape":[0,4]}`, ""}.check(t, p, nil)
	for payload, want := range map[string]string{
		`{"dtype":"<i2","shape":[1]}`:  "4 came",
		`"objects"`:                    "no bytes",
		`"fields"`:                     "send each field",
		`{"dtype":"O","shape":[0]}`:    "no bytes", // a program that gets pointers from its caller
		`{"dtype":"u1,O","shape":[0]}`: "no bytes",
	} {
		var failed *procpool.WorkerError
		if _, _, err := p.DoBytes(within(t), json.RawMessage(payload), []byte("\x01\x00\x02\x00")); !errors.As(err, &failed) || !strings.Contains(failed.Message, want) {
			t.Errorf("%s: %v, want %q", payload, err, want)
		}
	}
	q := submit(t, p, json.RawMessage(`"every second column"`))
	for part, err := range q.Parts() {
		if err != nil || !sameJSON(string(part.Content), `{"dtype":">i2","shape":[4]}`) || string(part.Bytes) != "\x00\x00\x00\x01\x00\x02\x00\x03" {
			t.Errorf("a message: %s %q %v", part.Content, part.Bytes, err)
		}
	}
}

// TestNodeSendsManyMessagesWithoutAWarning has a worker send more messages at a time than the
// connection takes.
func TestNodeSendsManyMessagesWithoutAWarning(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip(err)
	}
	var log lockedBuffer
	p := startPool(t, func() *exec.Cmd { return exec.Command("node", "testdata/sends.mjs") }, func(c *procpool.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	q := submit(t, p, json.RawMessage(`1`))
	n := 0
	for _, err := range q.Messages() {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if got, err := q.Result(); err != nil || string(got) != `"sent"` || n != 32 {
		t.Errorf("%d messages, %s, %v", n, got, err)
	}
	if err := p.Stop(within(t)); err != nil { // its output is complete then
		t.Error(err)
	}
	if strings.Contains(log.String(), "Warning") {
		t.Errorf("it warned:\n%s", log.String())
	}
}
