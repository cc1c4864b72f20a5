package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// message is a message with its bytes.
type message struct {
	wire.Envelope
	data []byte
}

// read reads the next message as a pool does.
func read(r *wire.Reader) (m message, err error) {
	line, err := r.Next()
	if err != nil {
		return m, err
	}
	if err := wire.Decode(line, &m.Envelope); err != nil || m.Length == 0 {
		return m, err
	}
	m.data, err = r.Bytes(m.Length, nil)
	return m, err
}

func TestBytesFollowTheirLine(t *testing.T) {
	small, large := []byte("a\n\x00{}\xff"), bytes.Repeat([]byte("0123456789abcde\n"), 20_000)
	var b bytes.Buffer
	w := wire.NewWriter(&b, 0)
	if err := errors.Join(
		w.Query("q1", json.RawMessage("[1,\n2]"), small, wire.About{TimeoutMs: 5, Metadata: map[string]string{"a": "b"}}),
		w.Cancel("q1"),
		w.Message("q1", nil, large),
		w.Complete("q1", json.RawMessage("2"), []byte("\n")),
		w.Complete("q1", json.RawMessage("3"), nil),
		w.Query("q2", nil, nil, wire.About{}),
	); err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]io.Reader{"at once": bytes.NewReader(b.Bytes()), "byte by byte": iotest.OneByteReader(bytes.NewReader(b.Bytes()))} {
		r := wire.NewReader(stream, 0)
		for _, want := range []struct {
			kind  wire.Type
			value string
			data  []byte
		}{{wire.Query, "[1, 2]", small}, {wire.Cancel, "", nil}, {wire.Message, "null", large}, {wire.Complete, "2", []byte("\n")}, {wire.Complete, "3", nil}, {wire.Query, "null", nil}} {
			m, err := read(r)
			value := slices.Concat(m.Payload, m.Content, m.Result)
			if err != nil || m.Type != want.kind || string(value) != want.value || !bytes.Equal(m.data, want.data) {
				t.Errorf("%s: %s %s with %d bytes, %v; want %s %s with %d", name, m.Type, value, len(m.data), err, want.kind, want.value, len(want.data))
			}
		}
		if _, err := read(r); err != io.EOF { //nolint:errorlint // io.EOF comes unwrapped
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

// TestBytesAreReadOnAfterADeadline interrupts the reading after every byte.
func TestBytesAreReadOnAfterADeadline(t *testing.T) {
	text := `{"type":"complete","requestId":"q1","result":"x","bytes":5}` + "\n" + "1\n345\n" + `{"type":"shutdown_ack"}` + "\n"
	var parts []io.Reader
	for i := range text {
		parts = append(parts, strings.NewReader(text[i:i+1]), iotest.ErrReader(os.ErrDeadlineExceeded))
	}
	r := wire.NewReader(&inTurn{parts}, 0)
	again := func(read func() ([]byte, error)) []byte {
		for {
			got, err := read()
			if err == nil {
				return got
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
	}
	var e wire.Envelope
	if err := wire.Decode(again(r.Next), &e); err != nil {
		t.Fatal(err)
	}
	if got := again(func() ([]byte, error) { return r.Bytes(e.Length, nil) }); string(got) != "1\n345" || string(e.Result) != `"x"` {
		t.Errorf("%q, %q", got, e.Result)
	}
	if line := again(r.Next); string(line) != `{"type":"shutdown_ack"}` {
		t.Errorf("after it comes %q", line)
	}
}

// TestBytesAreReadIntoABuffer also takes the buffer away in the middle.
func TestBytesAreReadIntoABuffer(t *testing.T) {
	const line = `{"type":"x","bytes":3}` + "\n"
	buf := make([]byte, 4)
	r := wire.NewReader(io.MultiReader(strings.NewReader(line+"abc\n"+line+"def\n"+line), iotest.OneByteReader(strings.NewReader("gh")), &inTurn{[]io.Reader{iotest.ErrReader(os.ErrDeadlineExceeded), strings.NewReader("i\n")}}), 0)
	next := func(buf []byte) []byte {
		t.Helper()
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		got, err := r.Bytes(3, buf)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := next(buf); string(got) != "abc" || &got[0] != &buf[0] {
		t.Errorf("%q is not in the buffer", got)
	}
	if got := next(buf[:0:3]); string(got) != "def" || string(buf[:3]) != "abc" {
		t.Errorf("%q, and a buffer that is too small has %q", got, buf)
	}
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Bytes(3, buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	r.Keep()
	copy(buf, "xxxx")
	if got, err := r.Bytes(3, buf); string(got) != "ghi" || err != nil || string(buf) != "xxxx" {
		t.Errorf("%q, %v, and the buffer has %q", got, err, buf)
	}
}

// inTurn reads once from each reader.
type inTurn struct{ parts []io.Reader }

func (r *inTurn) Read(b []byte) (int, error) {
	if len(r.parts) == 0 {
		return 0, io.EOF
	}
	part := r.parts[0]
	r.parts = r.parts[1:]
	return part.Read(b)
}

func TestWrongLengthsAreRefused(t *testing.T) {
	var length *wire.LengthError
	var long *wire.TooLongError
	var partial *wire.PartialError
	line := func(n any) string {
		return fmt.Sprintf(`{"type":"complete","requestId":"q1","result":1,"bytes":%v}`, n) + "\n"
	}
	for in, want := range map[string]any{
		line(3) + "1234\n":               &length,
		line(3) + "12\n" + line(0):       &length,
		line(3) + "12":                   &partial,
		line(3):                          &partial,
		line(3) + "123":                  &partial, // without the newline
		line(200) + "1":                  &long,
		line(2147483647):                 &long,
		line(2147483648):                 nil,
		line(-1) + "1":                   nil,
		line(1.5) + "1":                  nil,
		line(`"3"`) + "123\n":            nil,
		line("null") + "\n":              nil,
		`{"type":"x","bytes":[]}` + "\n": nil,
	} {
		_, err := read(wire.NewReader(strings.NewReader(in), 256))
		if want == nil && !errors.Is(err, wire.ErrField) || want != nil && !errors.As(err, want) || err != nil && len(err.Error()) > 300 {
			t.Errorf("%q: %v, want %T", in, err, want)
		}
	}
	if _, err := wire.NewReader(strings.NewReader("123\n"), 0).Bytes(3, nil); err == nil {
		t.Error("bytes were read without a line before them")
	}
	r := wire.NewReader(strings.NewReader(line(0)+"\n"+line(1)+"x\n"), 0)
	if m, err := read(r); err != nil || m.data != nil {
		t.Errorf("a length of 0 is %q, %v", m.data, err)
	}
	if m, err := read(r); err != nil || string(m.data) != "x" {
		t.Errorf("after a length of 0 comes %q, %v", m.data, err)
	}
}

func TestLimitIsThatOfLineAndBytes(t *testing.T) {
	for _, size := range []int{100, 100_000} { // in one write, and in several
		var b bytes.Buffer
		data := bytes.Repeat([]byte("x"), size)
		if err := wire.NewWriter(&b, 0).Complete("q1", nil, data); err != nil {
			t.Fatal(err)
		}
		limit := b.Len()
		if m, err := read(wire.NewReader(bytes.NewReader(b.Bytes()), limit)); err != nil || !bytes.Equal(m.data, data) {
			t.Errorf("at the limit: %v", err)
		}
		var long *wire.TooLongError
		if _, err := read(wire.NewReader(bytes.NewReader(b.Bytes()), limit-1)); !errors.As(err, &long) || long.Length != size || long.Limit != limit-1 {
			t.Errorf("over the limit: %v", err)
		}
		if err := wire.NewWriter(io.Discard, limit).Complete("q1", nil, data); err != nil {
			t.Errorf("written at the limit: %v", err)
		}
		w := wire.NewWriter(io.Discard, limit-1)
		if err := w.Complete("q1", nil, data); !errors.As(err, &long) {
			t.Errorf("written over the limit: %v", err)
		}
		if err := w.Ready(wire.Offer{}); err != nil {
			t.Errorf("a refused message poisons the writer: %v", err)
		}
	}
}

func TestAPartialWriteOfBytesPoisons(t *testing.T) {
	for _, size := range []int{100, 100_000} {
		w := wire.NewWriter(&writes{fail: 1}, 0)
		if err := w.Complete("q1", nil, make([]byte, size)); !errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
		if err := w.Complete("q1", nil, make([]byte, size)); !errors.Is(err, wire.ErrPoisoned) {
			t.Error(err)
		}
	}
}

// FuzzBytes reads any input as a pool does. Every message that is read is read again the
// same after it was written, nothing is longer than the limit, and the bytes equal those of
// the input.
func FuzzBytes(f *testing.F) {
	var b bytes.Buffer
	w := wire.NewWriter(&b, 0)
	_ = errors.Join(w.Query("q1", nil, []byte("ab\n{}"), wire.About{TimeoutMs: 1}), w.Message("q1", nil, []byte("\n")), w.Complete("q1", nil, []byte("x")))
	f.Add(b.Bytes())
	for _, seed := range []string{
		`{"type":"x","bytes":3}` + "\nabc\n", `{"type":"x","bytes":3}` + "\nab\n", `{"type":"x","bytes":0}` + "\n\n", `{"bytes":9,"type":"x","bytes":1}` + "\na\n",
		`{"type":"x","bytes":1e1}` + "\n0123456789\n", `{"type":"x","bytes":` + strings.Repeat("9", 30) + "}\n", `{"type":"complete","requestId":"q","result":1,"bytes":300}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	const limit = 256
	f.Fuzz(func(t *testing.T, in []byte) {
		r := wire.NewReader(iotest.HalfReader(bytes.NewReader(in)), limit)
		for range len(in) + 1 {
			m, err := read(r)
			var long *wire.TooLongError
			if err != nil && !(errors.As(err, &long) && long.Length == 0 || errors.Is(err, wire.ErrNotJSON) || errors.Is(err, wire.ErrField)) {
				return // the end, or what a pool ends the worker for
			}
			if err != nil || m.Length == 0 {
				continue
			}
			if len(m.data) != m.Length || m.Length >= limit || !bytes.Contains(in, append(slices.Clone(m.data), '\n')) {
				t.Fatalf("a length of %d has the bytes %q", m.Length, m.data)
			}
			if m.Type != wire.Complete {
				continue
			}
			var out bytes.Buffer
			if err := wire.NewWriter(&out, 0).Complete(m.RequestID, m.Result, m.data); err != nil {
				t.Fatal(err)
			}
			again, err := read(wire.NewReader(&out, 0))
			if err != nil || again.RequestID != m.RequestID || !bytes.Equal(again.Result, m.Result) || !bytes.Equal(again.data, m.data) {
				t.Fatalf("%+v is read as %+v, %v", m, again, err)
			}
		}
		t.Fatal("it reads on after the end")
	})
}
