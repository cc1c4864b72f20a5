//go:build unix

package procpool_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// TestBytesGoBothWays sends bytes that no text protocol takes, to a worker in each
// language.
func TestBytesGoBothWays(t *testing.T) {
	every := make([]byte, 1<<20)
	for i := range every {
		every[i] = byte(i * i >> 7)
	}
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.MaxFrame = 2 << 20 })
			for _, data := range [][]byte{nil, {}, []byte("\n"), []byte("{}\n{}\n"), every[:65_000], every} {
				payload := json.RawMessage(`{"n":[1,` + "\n" + `2]}`)
				result, answer, err := p.DoBytes(within(t), payload, data)
				if err != nil || !sameJSON(string(result), `{"n":[1,2]}`) || !bytes.Equal(answer, data) {
					t.Fatalf("with %d bytes: %.100s, %d bytes, %v", len(data), result, len(answer), err)
				}
			}
			if result, answer, err := p.DoBytes(within(t), nil, every[:10]); err != nil || string(result) != "null" || !bytes.Equal(answer, every[:10]) {
				t.Errorf("without a payload: %s, %q, %v", result, answer, err)
			}
			q := submit(t, p, json.RawMessage("1"), procpool.Bytes(every))
			if answer, err := q.Bytes(); err != nil || !bytes.Equal(answer, every) {
				t.Errorf("submitted: %d bytes, %v", len(answer), err)
			}
			if got := do(t, p, json.RawMessage("7"), procpool.Bytes(every[:10])); got != "7" {
				t.Errorf("a caller that does not look at the bytes has %s", got)
			}
			var long *wire.TooLongError
			if _, _, err := p.DoBytes(within(t), nil, make([]byte, 2<<20)); !errors.As(err, &long) {
				t.Errorf("over the limit: %v", err)
			}
			if s := p.Stats(); s.Spawned != 1 {
				t.Errorf("there were %d workers", s.Spawned)
			}
		})
	}
}

func TestStreamedBytes(t *testing.T) {
	p := start(t, "serve", nil)
	q := submit(t, p, ask{Op: "parts", N: 100, Size: 30_000}.raw())
	n := 0
	for part, err := range q.Parts() {
		if err != nil {
			t.Fatal(err)
		}
		if string(part.Content) != fmt.Sprint(n) || len(part.Bytes) != 30_000 || part.Bytes[0] != byte(n) {
			t.Fatalf("part %d is %s with %d bytes", n, part.Content, len(part.Bytes))
		}
		n++
	}
	if answer, err := q.Bytes(); n != 100 || err != nil || string(answer) != "end" {
		t.Errorf("%d parts, %q, %v", n, answer, err)
	}
	n = 0
	for content, err := range submit(t, p, ask{Op: "parts", N: 10, Size: 1}.raw()).Messages() {
		if err != nil || string(content) != fmt.Sprint(n) {
			t.Fatalf("message %d is %s, %v", n, content, err)
		}
		n++
	}
	if n != 10 {
		t.Errorf("%d messages", n)
	}
}

// TestWorkersWithoutBytesGoOn has workers that do not take bytes.
func TestWorkersWithoutBytesGoOn(t *testing.T) {
	for _, ready := range []string{`{"type":"ready"}`, `{"type":"ready","version":1}`, `{"type":"ready","capabilities":["stacks"]}`} {
		t.Setenv("SAYS", ready)
		p := start(t, "says", func(c *procpool.Config) { c.MaxQueue = 10 })
		do(t, p, ask{}.raw())
		for range 3 {
			q := submit(t, p, ask{}.raw(), procpool.Bytes([]byte("x")), procpool.Idempotent())
			if _, err := q.Bytes(); !errors.Is(err, procpool.ErrNoBytes) || q.State() != procpool.QueryError {
				t.Errorf("%s: %v, %s", ready, err, q.State())
			}
			if _, _, err := p.DoBytes(within(t), nil, []byte("x")); !errors.Is(err, procpool.ErrNoBytes) {
				t.Errorf("%s: %v", ready, err)
			}
			do(t, p, ask{}.raw())
		}
		if _, _, err := p.DoBytes(within(t), nil, nil); err != nil {
			t.Errorf("%s: no bytes: %v", ready, err)
		}
		if s := p.Stats(); s.Spawned != 1 || s.Retried != 0 {
			t.Errorf("%s: the worker was replaced: %+v", ready, s)
		}
	}
}

// TestLengthsThatLie has a worker answer its first query with bytes that are not as it
// says. Its query fails, it is ended, and the others go on.
func TestLengthsThatLie(t *testing.T) {
	const answer = `{"type":"complete","requestId":"ID","result":1,"bytes":%s}` + "\n%s"
	announces := `{"type":"ready","capabilities":["bytes"]}`
	var length *wire.LengthError
	var long *wire.TooLongError
	var partial *wire.PartialError
	for name, c := range map[string]struct {
		ready, n, after string
		want            any // nil for wire.ErrField
	}{
		"too short":      {announces, "3", "12345\n", &length},
		"too long":       {announces, "9", "12345\n" + strings.Repeat(`{"type":"health_ok"}`+"\n", 3), &length},
		"over the limit": {announces, "10000000", "1", &long},
		"enormous":       {announces, "99999999999999999999", "1", nil},
		"negative":       {announces, "-1", "1", nil},
		"a fraction":     {announces, "1.5", "1", nil},
		"truncated":      {announces, "100", "123CLOSE", &partial},
		"no newline":     {announces, "3", "123CLOSE", &partial},
		"not announced":  {`{"type":"ready"}`, "3", "123\n", errors.New},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SAYS", c.ready)
			t.Setenv("LIES", fmt.Sprintf(answer, c.n, c.after))
			modes := []string{"serve", "lies", "serve"}
			p := startPool(t, func() *exec.Cmd {
				mode := modes[0]
				modes = append(modes[1:], "serve")
				return self(mode)
			}, func(cfg *procpool.Config) {
				cfg.MaxFrame, cfg.MaxWorkers, cfg.MaxQueue = 1<<20, 2, 10
			})
			dir := t.TempDir()
			beside := submit(t, p, ask{Op: "wait", Path: filepath.Join(dir, "open")}.raw())
			eventually(t, "one is busy", func() bool { return p.Stats().Busy == 1 })
			_, err := p.Do(within(t), ask{}.raw())
			var broke *procpool.ProtocolError
			if !errors.As(err, &broke) {
				t.Fatalf("its query ended with %v", err)
			}
			switch want := c.want.(type) {
			case nil:
				if !errors.Is(err, wire.ErrField) {
					t.Error(err)
				}
			case func(string) error:
				if !strings.Contains(err.Error(), `did not announce the capability "bytes"`) {
					t.Error(err)
				}
			default:
				if !errors.As(err, want) {
					t.Errorf("%v, want %T", err, want)
				}
			}
			open(t, dir)
			if _, err := beside.Result(); err != nil {
				t.Errorf("the query of another worker: %v", err)
			}
			do(t, p, ask{}.raw())
			eventually(t, "the worker is ended", func() bool { return p.Stats().Crashed == 1 })
		})
	}
}

// TestBytesThatStopComing has a worker announce more bytes than it sends, and live. The
// deadline ends its query, and the worker goes down the ladder.
func TestBytesThatStopComing(t *testing.T) {
	t.Setenv("SAYS", `{"type":"ready","capabilities":["bytes"]}`)
	t.Setenv("LIES", `{"type":"complete","requestId":"ID","result":1,"bytes":1000}`+"\n123")
	p := start(t, "lies", func(c *procpool.Config) { c.CancelGrace, c.MaxQueue = 20*time.Millisecond, 1 })
	eventually(t, "a worker that has the query is ended", func() bool {
		var late *procpool.DeadlineError
		if _, err := p.Do(within(t), ask{}.raw(), procpool.Timeout(50*time.Millisecond)); !errors.As(err, &late) {
			t.Error(err)
		}
		return p.Stats().Ended[procpool.CauseUnconfirmed] > 0
	})
}

func TestAnswersAreReadIntoMemoryOfTheCaller(t *testing.T) {
	p := start(t, "serve", nil)
	data, buf := bytes.Repeat([]byte("0123456789"), 100_000), make([]byte, 1_000_001)
	eventually(t, "an answer is in the memory", func() bool { // once no goroutine of the pool reads
		_, answer, err := p.DoBytes(within(t), nil, data, procpool.Into(buf))
		if err != nil || !bytes.Equal(answer, data) {
			t.Fatalf("%d bytes, %v", len(answer), err)
		}
		return &answer[0] == &buf[0]
	})
	if _, answer, err := p.DoBytes(within(t), nil, data, procpool.Into(buf[:10:10])); err != nil || !bytes.Equal(answer, data) {
		t.Errorf("with too little memory: %d bytes, %v", len(answer), err)
	}
	if _, answer, err := p.DoBytes(within(t), nil, nil, procpool.Into(buf)); err != nil || answer != nil {
		t.Errorf("without bytes: %d bytes, %v", len(answer), err)
	}
}

// TestMemoryOfTheCallerIsItsAgainAtTheEnd has the deadline pass while the bytes come. The
// rest comes later.
func TestMemoryOfTheCallerIsItsAgainAtTheEnd(t *testing.T) {
	t.Setenv("SAYS", `{"type":"ready","capabilities":["bytes"]}`)
	t.Setenv("LIES", `{"type":"complete","requestId":"ID","result":1,"bytes":10}`+"\n123")
	t.Setenv("LIES_REST", "4567890\n")
	p := start(t, "lies", func(c *procpool.Config) { c.MinWorkers, c.CancelGrace = 1, patience })
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 }) // otherwise the time may pass in the queue
	buf := []byte("xxxxxxxxxxxxx")
	var late *procpool.DeadlineError
	if _, _, err := p.DoBytes(within(t), nil, nil, procpool.Into(buf), procpool.Timeout(3*time.Second)); !errors.As(err, &late) {
		t.Fatal(err)
	}
	copy(buf, "yyyyyyyyyyyyy")
	eventually(t, "the worker has confirmed", func() bool { s := p.Stats(); return s.Ready == 1 && s.Late == 1 })
	if string(buf) != "yyyyyyyyyyyyy" {
		t.Errorf("the pool wrote to it: %q", buf)
	}
}

// TestBytesAreAPartOfTheFingerprint has two queries with the same payload.
func TestBytesAreAPartOfTheFingerprint(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue, c.Surge = 10, 1 })
	deadly := ask{Op: "exit-bytes", N: 1}.raw()
	if _, _, err := p.DoBytes(within(t), deadly, []byte("die"), procpool.Idempotent()); !errors.Is(err, procpool.ErrPoison) {
		t.Fatal(err)
	}
	if _, _, err := p.DoBytes(within(t), deadly, []byte("live"), procpool.Idempotent()); err != nil {
		t.Errorf("with other bytes: %v", err)
	}
	if _, err := p.Do(within(t), deadly); err != nil {
		t.Errorf("without bytes: %v", err)
	}
	var rejected *procpool.RejectedError
	if _, _, err := p.DoBytes(within(t), deadly, []byte("die")); !errors.Is(err, procpool.ErrPoison) || !errors.As(err, &rejected) {
		t.Errorf("again: %v", err)
	}
}

// lies answers a query with the bytes that $LIES has.
func lies(conn interface {
	Write(b []byte) (int, error)
	Close() error
}, id string) {
	text, end := strings.CutSuffix(strings.ReplaceAll(os.Getenv("LIES"), "ID", id), "CLOSE")
	_, _ = conn.Write([]byte(text))
	if end {
		conn.Close()
		time.Sleep(time.Hour)
	}
}
