package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// every has one of each message, as the writer writes it.
func every(t testing.TB, limit int) []byte {
	var b bytes.Buffer
	w := wire.NewWriter(&b, limit)
	for _, err := range []error{
		w.Query("q1", json.RawMessage(`{"a":[1,2.5e-3,"x\"}",true,null]}`), nil, wire.About{}), w.Cancel("q1"), w.Shutdown(true), w.Shutdown(false), w.HealthCheck(),
		w.Ready(wire.Offer{}), w.Session("q1", "é\n\"s\""), w.Message("q1", json.RawMessage("[1,\n2]"), nil), w.Complete("q1", nil, nil), w.Error("q1", "bad \x00\xff"),
		w.ShutdownAck(), w.HealthOK(1.5, 7), w.Dump(), w.Stacks("goroutine 1\n\tmain.go"),
		w.Query("q1", json.RawMessage("1"), nil, wire.About{TimeoutMs: 1500, Traceparent: "00-x", Tracestate: "a=b", Metadata: map[string]string{"tenant": "é\""}}),
		w.Query("q1", nil, nil, wire.About{}), w.Call("q1", "c1", "state.get", json.RawMessage(`["k"]`)), w.Reply("c1", nil), w.ReplyError("c1", "no\nsuch"), w.ReplyError("c1", ""),
		w.Ready(wire.Offer{Version: 1, Capabilities: []string{wire.CanStacks}, Concurrency: 7}), w.Ready(wire.Offer{Concurrency: 1}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestEveryMessageIsReadAsItWasWritten(t *testing.T) {
	want := []wire.Envelope{
		{Type: wire.Query, RequestID: "q1", Payload: json.RawMessage(`{"a":[1,2.5e-3,"x\"}",true,null]}`)},
		{Type: wire.Cancel, RequestID: "q1"},
		{Type: wire.Shutdown, Graceful: true},
		{Type: wire.Shutdown},
		{Type: wire.HealthCheck},
		{Type: wire.Ready},
		{Type: wire.Session, RequestID: "q1", SessionID: "é\n\"s\""},
		{Type: wire.Message, RequestID: "q1", Content: json.RawMessage("[1, 2]")},
		{Type: wire.Complete, RequestID: "q1", Result: json.RawMessage("null")},
		{Type: wire.Error, RequestID: "q1", Error: "bad \x00�"},
		{Type: wire.ShutdownAck},
		{Type: wire.HealthOK, Uptime: 1.5, QueriesProcessed: 7},
		{Type: wire.Dump},
		{Type: wire.Stacks, Stacks: "goroutine 1\n\tmain.go"},
		{Type: wire.Query, RequestID: "q1", Payload: json.RawMessage("1"), About: wire.About{TimeoutMs: 1500, Traceparent: "00-x", Tracestate: "a=b", Metadata: map[string]string{"tenant": "é\""}}},
		{Type: wire.Query, RequestID: "q1", Payload: json.RawMessage("null")},
		{Type: wire.Call, RequestID: "q1", CallID: "c1", Method: "state.get", Params: json.RawMessage(`["k"]`)},
		{Type: wire.Reply, CallID: "c1", Result: json.RawMessage("null")},
		{Type: wire.Reply, CallID: "c1", Error: "no\nsuch"},
		{Type: wire.Reply, CallID: "c1", Error: "error"},
		{Type: wire.Ready, Offer: wire.Offer{Version: 1, Capabilities: []string{wire.CanStacks}, Concurrency: 7}},
		{Type: wire.Ready, Offer: wire.Offer{Concurrency: 1}},
	}
	for name, stream := range map[string]io.Reader{
		"at once": bytes.NewReader(every(t, 0)), "byte by byte": iotest.OneByteReader(bytes.NewReader(every(t, 0))),
	} {
		r := wire.NewReader(stream, 0)
		for _, want := range want {
			line, err := r.Next()
			if err != nil {
				t.Fatal(name, err)
			}
			if err := wire.Validate(line); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var e wire.Envelope
			if err := wire.Decode(line, &e); err != nil || fmt.Sprintf("%+v", e) != fmt.Sprintf("%+v", want) {
				t.Errorf("%s: %q is\n%+v, %v, want\n%+v", name, line, e, err, want)
			}
		}
		if _, err := r.Next(); err != io.EOF { //nolint:errorlint // io.EOF comes unwrapped
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

func TestOrderSpaceAndUnknownFieldsDoNotMatter(t *testing.T) {
	var e wire.Envelope
	line := " { \"x\" : {\"type\":\"ready\",\"y\":[[],{}]} , \"requestId\":\"\\u0071\\u0031\",\t\"result\" : {\"a\" : 1} ,\"type\":\"complete\" } \r"
	if err := wire.Decode([]byte(line), &e); err != nil || e.Type != wire.Complete || e.RequestID != "q1" || string(e.Result) != `{"a" : 1}` {
		t.Errorf("%+v, %v", e, err)
	}
	if err := wire.Decode([]byte(`{"type":"from the future"}`), &e); err != nil || e.Type != "from the future" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestWrongLinesAreRefusedByName(t *testing.T) {
	for line, want := range map[string]string{
		``: "want an object", `x`: "want an object", `[]`: "want an object", `{`: "want a string", `{}`: "without type",
		`{"type":"ready"`: "want , or }", `{"type":"ready"} x`: "more after", `{"type":}`: "want a value", `{"type":"ready",}`: "want a string",
		`{"type":1}`: "type is \"1\", want a string", `{"type":"complete","result":1}`: "without requestId", `{"type":"complete","requestId":"a"}`: "without result",
		`{"type":"message","requestId":"a"}`: "without content", `{"type":"query","requestId":"a"}`: "without payload",
		`{"type":"session","requestId":"a"}`: "without sessionId", `{"type":"error"}`: "without requestId",
		`{"type":"complete","requestId":"a","result":tru}`: "want true", `{"type":"complete","requestId":"a","result":01}`: "want , or }",
		`{"type":"complete","requestId":"a","result":1.}`: "after the point", `{"type":"complete","requestId":"a","result":1e}`: "exponent",
		`{"type":"complete","requestId":"a","result":"x}`: "does not end", `{"type":"complete","requestId":"a","result":[1 2]}`: "want , or ]",
		`{"type":"complete","requestId":"a","result":{1:2}}`: "want a string", `{"type":"shutdown","graceful":1}`: "true or false",
		`{"type":"health_ok","uptime":"1"}`: "number of seconds", `{"type":"health_ok","queriesProcessed":1.5}`: "whole number",
		`{"type":"ready","version":2}`: "version is \"2\", want a whole number from 1 to 1", `{"type":"ready","version":0}`: "from 1 to 1", `{"type":"ready","version":"2"}`: "version",
		`{"type":"ready","concurrency":0}`: "concurrency is \"0\"", `{"type":"ready","concurrency":1000000}`: "from 1 to 1000", `{"type":"ready","concurrency":1.5}`: "concurrency",
		`{"type":"ready","capabilities":["telepathy"]}`: "capability \"telepathy\" is not known", `{"type":"ready","capabilities":"stacks"}`: "list of names", `{"type":"ready","capabilities":[1]}`: "list of names",
		`{"type":"ready","capabilities":["` + strings.Repeat("x", 1<<20) + `"]}`: "is not known", `{"type":"stacks"}`: "without stacks",
		`{"type":"call","callId":"1","method":"m","params":1}`: "without requestId", `{"type":"call","requestId":"a","callId":"1","method":"m"}`: "without params",
		`{"type":"call","requestId":"a","callId":"1","params":1}`: "without method", `{"type":"reply"}`: "without callId", `{"type":"query","requestId":"a","payload":1,"metadata":{"a":1}}`: "object of texts",
		`{"type":"query","requestId":"a","payload":1,"timeoutMs":-1}`: "timeoutMs",
		`{"type":"error","requestId":"\q"}`:                           "requestId", strings.Repeat("[", 20000): "want an object",
		`{"a":` + strings.Repeat("[", 20000): "nested too deep",
	} {
		var e wire.Envelope
		err := wire.Decode([]byte(line), &e)
		if err == nil || !strings.Contains(err.Error(), want) || (!errors.Is(err, wire.ErrNotJSON) && !errors.Is(err, wire.ErrField)) {
			t.Errorf("%.60q: %v, want %q", line, err, want)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
	}
}

// TestValuesAreCheckedInBothDirections puts what is not JSON into strings of a line.
func TestValuesAreCheckedInBothDirections(t *testing.T) {
	for _, value := range []string{
		"\"a\x00b\"", "\"\x1f\"", `"\q"`, `"\u12g4"`, `"\u123"`, `"\ "`, "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\t\"", `["a",{"b\x":1}]`, "{\"\x01\":1}",
		`["` + strings.Repeat("é", 100) + `\q"]`,
	} {
		if wire.CheckValue([]byte(value)) == nil {
			t.Errorf("CheckValue accepts %q", value)
		}
		for _, line := range []string{`{"type":"complete","requestId":"a","result":%s}`, `{"type":"message","requestId":"a","content":%s}`, `{"type":"call","requestId":"a","callId":"b","method":"c","params":%s}`} {
			var e wire.Envelope
			if err := wire.Decode(fmt.Appendf(nil, line, value), &e); !errors.Is(err, wire.ErrNotJSON) || len(err.Error()) > 1000 {
				t.Errorf("%.30s with %q: %v", line, value, err)
			}
		}
	}
	for _, value := range []string{"[1,\t2\r]", `"\"\\\/\b\f\n\r\t\u00e9\ud800"`, `"é"`, "\"\x7f\"", `{"\u0041\\":"\\\\"}`, ` [ "\n" ] `} {
		var e wire.Envelope
		if err := wire.Decode([]byte(`{"type":"complete","requestId":"a","result":`+value+`}`), &e); err != nil || wire.CheckValue([]byte(value)) != nil || !json.Valid([]byte(value)) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestLongLinesAreSkipped(t *testing.T) {
	long := `{"type":"message","requestId":"q1","content":"` + strings.Repeat("x", 5000) + `"}`
	r := wire.NewReader(strings.NewReader(`{"type":"ready"}`+"\n"+long+"\n"+`{"type":"shutdown_ack"}`+"\n"), 1000)
	if line, err := r.Next(); err != nil || string(line) != `{"type":"ready"}` {
		t.Fatalf("%s, %v", line, err)
	}
	var tooLong *wire.TooLongError
	if _, err := r.Next(); !errors.As(err, &tooLong) || tooLong.Limit != 1000 {
		t.Fatal(err)
	}
	var e wire.Envelope
	if err := wire.Decode(tooLong.Head, &e); err == nil || e.Type != wire.Message || e.RequestID != "q1" {
		t.Errorf("its head decodes to %+v, %v", e, err)
	}
	if line, err := r.Next(); err != nil || string(line) != `{"type":"shutdown_ack"}` {
		t.Errorf("the line after it: %s, %v", line, err)
	}
	r = wire.NewReader(strings.NewReader(`{"type":"re`), 1000)
	var partial *wire.PartialError
	if _, err := r.Next(); !errors.As(err, &partial) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	w := wire.NewWriter(io.Discard, 100)
	if err := w.Error("q1", strings.Repeat("x", 200)); !errors.As(err, &tooLong) {
		t.Error(err)
	}
	if err := w.Message("q1", json.RawMessage(`"`+strings.Repeat("x", 200)+`"`), nil); !errors.As(err, &tooLong) {
		t.Error(err)
	}
	if err := w.Ready(wire.Offer{}); err != nil {
		t.Errorf("a refused message poisons the writer: %v", err)
	}
}

// writes counts writes, and fails after some.
type writes struct{ n, fail int }

func (w *writes) Write(b []byte) (int, error) {
	if w.n++; w.n == w.fail {
		return len(b) / 2, io.ErrShortWrite
	}
	return len(b), nil
}

func TestOneWriteForAFrameAndAPartialOnePoisons(t *testing.T) {
	out := &writes{fail: 3}
	w := wire.NewWriter(out, 0)
	if err := errors.Join(w.Query("q1", json.RawMessage(`"`+strings.Repeat("x", 4096)+`"`), nil, wire.About{}), w.HealthOK(1, 1)); err != nil || out.n != 2 {
		t.Fatalf("%v, %d writes", err, out.n)
	}
	if err := w.Cancel("q1"); !errors.Is(err, io.ErrShortWrite) || errors.Is(err, wire.ErrPoisoned) {
		t.Error(err)
	}
	for _, err := range []error{w.Cancel("q1"), w.Query("q2", json.RawMessage(`"`+strings.Repeat("x", 1<<20)+`"`), nil, wire.About{})} {
		if !errors.Is(err, wire.ErrPoisoned) || !errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
	}
	if out.n != 3 {
		t.Errorf("%d writes: the writer sent something after the partial line", out.n)
	}
}

func TestSchemas(t *testing.T) {
	files, err := filepath.Glob("schema/*.schema.json")
	if err != nil || len(files) != len(wire.Types()) {
		t.Errorf("there are %d schemas and %d types, %v", len(files), len(wire.Types()), err)
	}
	for line, want := range map[string]string{
		`{`: "not JSON", `{"type":1}`: "type is missing", `{"type":"x"}`: `want one of ["query"`, `{"type":"cancel"}`: "a cancel without requestId",
		`{"type":"cancel","requestId":1}`: "is of type number, want string", `{"type":"cancel","requestId":""}`: "is empty",
		`{"type":"health_ok","uptime":-1,"queriesProcessed":1}`: "want 0 or more", `{"type":"health_ok","uptime":1,"queriesProcessed":1.5}`: "want integer",
		`{"type":"shutdown","graceful":"yes"}`: "want boolean", "{\"type\":\"error\",\"requestId\":\"a\",\"error\":\"\xff\"}": "UTF-8",
	} {
		if err := wire.Validate([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// TestEveryByteOfAPayloadIsLookedAt puts special bytes into each place of strings of
// many lengths, because CheckValue looks at several bytes at a time.
func TestEveryByteOfAPayloadIsLookedAt(t *testing.T) {
	for length := 1; length < 70; length++ {
		for at := range length {
			value := []byte(`"` + strings.Repeat("x", length) + `"`)
			for _, c := range []byte("\x00\n\x1f !\"\\~\x7f\x80\x9f\xa0\xff") {
				value[1+at] = c
				want := json.Valid(value) && utf8.Valid(value)
				if err := wire.CheckValue(value); (err == nil) != want {
					t.Fatalf("CheckValue(%q) is %v, want valid: %v", value, err, want)
				}
			}
		}
	}
}

// FuzzFrame compares the scanner with encoding/json: fields decoded from a line
// are what the full parser finds, and invalid JSON is never accepted as a
// payload.
func FuzzFrame(f *testing.F) {
	f.Add(every(f, 0))
	for _, seed := range []string{
		"", "\n\n", `{"type":"ready"}`, `{"type":"complete","requestId":"q1","result":{"a":"\\\""}}` + "\n",
		`{"type":"message","requestId":"q\u0031","content":"` + strings.Repeat("x", 300) + `"}`, `{"type":"x","type":"ready"}`, `{"a":1,"b":[`, "\xff{}", `{"type":"error","requestId":"\ud800"}`,
		`{"type":"error","requestId":"a\\nb"}` + "\n" + `{"type":"error","requestId":"a\nb"}` + "\n" + `{"type":"error","requestId":"a"}` + "\n" + `{"type":"error","requestId":"a"}`,
		`1,"type":"shutdown"`, "\"\x1f\"", `"\`, `-`, `-0.0E+1`, " 1 ", `{"":{"":[]}}`, "\"\u0080\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := wire.CheckValue(in); (err == nil) != (json.Valid(in) && json.Valid(bytes.ToValidUTF8(in, nil)) && bytes.Equal(in, bytes.ToValidUTF8(in, []byte("?")))) {
			t.Errorf("CheckValue(%q) is %v, json.Valid says %v", in, err, json.Valid(in))
		}
		r := wire.NewReader(bytes.NewReader(in), 256)
		var e wire.Envelope // one for all lines: values of the previous line must not show
		for lines := 0; ; lines++ {
			line, err := r.Next()
			var long *wire.TooLongError
			var partial *wire.PartialError
			switch {
			case errors.As(err, &long):
				continue
			case err == io.EOF, errors.As(err, &partial): //nolint:errorlint // io.EOF comes unwrapped
				return
			case err != nil:
				t.Fatal(err)
			}
			if lines > len(in) || bytes.IndexByte(line, '\n') >= 0 || len(line) >= 256 {
				t.Fatalf("line %q", line)
			}
			err = wire.Decode(line, &e)
			valid := wire.Validate(line)
			if valid == nil && err != nil {
				t.Errorf("%q fits its schema, and Decode says %v", line, err)
			}
			if err == nil {
				value := map[wire.Type]json.RawMessage{wire.Message: e.Content, wire.Complete: e.Result, wire.Call: e.Params}[e.Type]
				if value != nil && wire.CheckValue(value) != nil {
					t.Errorf("%q: Decode accepts %q", line, value)
				}
			}
			if err != nil || !json.Valid(line) {
				continue
			}
			var whole struct {
				Type                     string
				RequestID                string `json:"requestId"`
				Payload, Content, Result json.RawMessage
			}
			var fields map[string]json.RawMessage // Go matches names case-insensitively
			if json.Unmarshal(line, &fields) != nil {
				continue
			}
			_ = json.Unmarshal(fields["type"], &whole.Type)
			_ = json.Unmarshal(fields["requestId"], &whole.RequestID)
			if whole.Type != string(e.Type) || whole.RequestID != e.RequestID || !bytes.Equal(fields["payload"], e.Payload) ||
				!bytes.Equal(fields["content"], e.Content) || !bytes.Equal(fields["result"], e.Result) {
				t.Errorf("%q is %+v, and by the parser %v", line, e, fields)
			}
		}
	})
}

func BenchmarkCheckText(b *testing.B) {
	text, err := json.Marshal(map[string]any{"text": strings.Repeat("A line of text.\nÉtude \"one\".\n", 3000), "list": make([]int, 1000)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if err := wire.CheckValue(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			line := []byte(`{"type":"complete","requestId":"q1","result":"` + strings.Repeat("x", size) + `"}`)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			var e wire.Envelope
			for b.Loop() {
				if err := wire.Decode(line, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheckValue(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			value := []byte(`"` + strings.Repeat("x", size) + `"`)
			b.SetBytes(int64(len(value)))
			for b.Loop() {
				if err := wire.CheckValue(value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
