package worker_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// plainLog returns a logger whose lines have no time.
func plainLog(to io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestLinesOfAProgramAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		lines := worker.LogLines(plainLog(&log), slog.LevelWarn, 3)
		said := func(want string) {
			t.Helper()
			if got := log.String(); got != want {
				t.Errorf("the log has\n%swant\n%s", got, want)
			}
			log.Reset()
		}
		for _, part := range []string{"a", "b\r\n", "\n\r\nc\nlast"} {
			if n, err := io.WriteString(lines, part); n != len(part) || err != nil {
				t.Errorf("Write: %d, %v", n, err)
			}
		}
		said("level=WARN msg=ab\nlevel=WARN msg=c\n")
		lines.Flush()
		lines.Flush()
		said("level=WARN msg=last\n")

		_, _ = io.WriteString(lines, "4\n5\n6\n")
		said("")
		time.Sleep(time.Second)
		_, _ = io.WriteString(lines, "7\n8\n9\n10\n")
		said("level=WARN msg=7 dropped=3\nlevel=WARN msg=8\nlevel=WARN msg=9\n")
		lines.Flush()
		said("level=WARN msg=\"lines were dropped\" dropped=1\n")

		time.Sleep(time.Second)
		long := strings.Repeat("x", 10<<10)
		_, _ = io.WriteString(lines, long[:5000])
		_, _ = io.WriteString(lines, long[5000:]+"\nshort\n")
		said("level=WARN msg=" + long[:8<<10] + " cut=2048\nlevel=WARN msg=short\n")
	})
}

// The rest of a line without an end is logged when the program has ended, from both streams.
func TestLastLinesOfAProgramAreLogged(t *testing.T) {
	for name, together := range map[string]bool{"two writers": false, "one": true} {
		var out, errs bytes.Buffer
		cmd := exec.Command("sh", "-c", "printf 'first\\nhalf'; exec 1>&-; sleep 0.1; printf problem >&2; exit 3")
		stdout := worker.LogLines(plainLog(&out), slog.LevelInfo, 0)
		cmd.Stdout, cmd.Stderr = stdout, worker.LogLines(plainLog(&errs), slog.LevelError, 0)
		want := "level=INFO msg=first\nlevel=INFO msg=half\n"
		if together {
			cmd.Stderr, want = stdout, "level=INFO msg=first\nlevel=INFO msg=halfproblem\n"
		}
		p := worker.NewProcess("child", cmd)
		if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		<-p.Gone()
		if out.String() != want || !together && errs.String() != "level=ERROR msg=problem\n" {
			t.Errorf("%s: %q and %q", name, out.String(), errs.String())
		}
		if err := p.Err(); err == nil || !strings.HasSuffix(err.Error(), "last line of stderr: "+lastOf(together)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func lastOf(together bool) string {
	if together {
		return "halfproblem"
	}
	return "problem"
}

// FuzzLogLines: in whatever parts lines come, their whole text is logged in order.
func FuzzLogLines(f *testing.F) {
	f.Add("a\nb\n\nc", 1)
	f.Add(strings.Repeat("y", 9000)+"\n", 4096)
	f.Fuzz(func(t *testing.T, text string, size int) {
		var got []string
		lines := worker.LogLines(slog.New(collect{&got}), slog.LevelInfo, 1<<30)
		size = max(size, 1)
		for b := text; b != ""; {
			n := min(size, len(b))
			if _, err := io.WriteString(lines, b[:n]); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		lines.Flush()
		var want []string
		for line := range strings.SplitSeq(text, "\n") {
			line = line[:min(len(line), 8<<10)]
			if line = strings.TrimSuffix(line, "\r"); line != "" {
				want = append(want, line)
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}

// collect is a handler that keeps the messages.
type collect struct{ into *[]string }

func (c collect) Enabled(context.Context, slog.Level) bool { return true }
func (c collect) Handle(_ context.Context, r slog.Record) error {
	*c.into = append(*c.into, r.Message)
	return nil
}
func (c collect) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c collect) WithGroup(string) slog.Handler      { return c }
