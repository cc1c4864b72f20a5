package docker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// record returns one record of the engine's log stream.
func record(stream byte, text string) string {
	header := make([]byte, 8)
	header[0] = stream
	binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
	return string(header) + text
}

const (
	t1 = "2026-11-21T05:00:00.000000001Z "
	t2 = "2026-11-21T05:00:00.000000002Z "
	t3 = "2026-11-21T05:00:00.000000003Z "
)

func moment(t testing.TB, text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestDemux(t *testing.T) {
	tests := map[string]struct {
		in, after string
		out, err  string
		last      string
		says      string
	}{
		"nothing":              {},
		"both streams":         {in: record(1, t1+"a\n") + record(2, t2+"b\n") + record(1, t3+"c\n"), out: "a\nc\n", err: "b\n", last: t3},
		"already copied":       {in: record(1, t1+"a\n") + record(1, t2+"b\n") + record(1, t3+"c\n"), after: t2, out: "c\n", last: t3},
		"part of a line":       {in: record(1, t1+"a b") + record(1, t2+" c\n"), out: "a b c\n", last: t2},
		"empty line":           {in: record(1, t1+"\n"), out: "\n", last: t1},
		"cut in a header":      {in: record(1, t1+"a\n") + "\x01\x00", out: "a\n", last: t1},
		"cut in a record":      {in: record(1, t1+"a\n") + record(1, t2+"b\n")[:20], out: "a\n", last: t1},
		"of the engine itself": {in: record(3, "log driver failed\n"), says: "log driver failed"},
		"no time":              {in: record(1, "hello world"), says: `record begins with "hello world"`},
		"no stream of ours":    {in: "HTTP/1.1 400 Bad Request", says: "unrecognized stream"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, err bytes.Buffer
			var after time.Time
			if test.after != "" {
				after = moment(t, test.after)
			}
			last, failed := demux(strings.NewReader(test.in), after, &out, &err)
			want := after
			if test.last != "" {
				want = moment(t, test.last)
			}
			if out.String() != test.out || err.String() != test.err || !last.Equal(want) {
				t.Errorf("copied %q and %q until %v, want until %v", out.String(), err.String(), last, want)
			}
			if (failed == nil) != (test.says == "") || failed != nil && !strings.Contains(failed.Error(), test.says) {
				t.Errorf("the error is %v", failed)
			}
		})
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// demux does not count a record as copied when the write fails.
func TestDemuxToAWriterThatFails(t *testing.T) {
	last, err := demux(strings.NewReader(record(1, t1+"a\n")+record(2, t2+"b\n")), time.Time{}, io.Discard, full{})
	if !errors.Is(err, io.ErrShortWrite) || !last.Equal(moment(t, t1)) {
		t.Errorf("until %v, %v", last, err)
	}
}

func BenchmarkDemux(b *testing.B) {
	line := t1 + strings.Repeat("x", 100) + "\n"
	in := strings.Repeat(record(1, line), 1000)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := demux(strings.NewReader(in), time.Time{}, io.Discard, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
