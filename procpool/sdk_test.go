//go:build unix

package procpool_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// answer is a worker's answer to one payload: a result, or a part of its error.
type answer struct{ payload, result, fails string }

var (
	deepPayload = strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	bigPayload  = strings.Repeat("9", 9000)
)

// TestQueriesOfEveryLengthAreAnswered has handlers that take about as long as a worker in Go or
// Python waits before another of its threads reads.
func TestQueriesOfEveryLengthAreAnswered(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, nil)
			for i := range 200 {
				payload := json.RawMessage(fmt.Sprintf(`{"op":"sleep","seconds":%v}`, float64(i%13)/1000))
				if got := do(t, p, payload, procpool.Timeout(patience/2)); got != `"slept"` {
					t.Errorf("got %s", got)
				}
			}
		})
	}
}

// TestWorkersSurviveOddHandlers has handlers that do what they should not. Each time
// only the query fails, and the worker goes on.
func TestWorkersSurviveOddHandlers(t *testing.T) {
	for program, cases := range map[string][]answer{
		"python3 testdata/odd.py": {
			{`"nan"`, "", "the result: ValueError"},
			{`"send nan"`, "", "ValueError"},
			{`"deep"`, "", "the result: RecursionError"},
			{`"self"`, "", "the result: "},
			{`"object"`, "", "the result: TypeError"},
			{`"mute"`, "", "Mute"},
			{`"pipe"`, "", "BrokenPipeError: of the handler's own"},
			{`"reset"`, "", "ConnectionResetError: of the handler's own"},
			{`"cancel"`, "", "CancelledError"},
			{`"generator"`, "", "GeneratorExit: odd"},
			{`"long"`, "", "longer than the limit"},
			{`"send long"`, "", "longer than the limit"},
			{`"long error"`, "", "RuntimeError: xxx"},
			{`"surrogate"`, `"\ud800 \ud83d\ude00"`, ""},
			{`"raise surrogate"`, "", "RuntimeError: "},
			{`"big"`, "1606938044258990275541962092341162602522202993782792835301376", ""},
			{`"undefined"`, "null", ""},
			{`"behind"`, `"left behind"`, ""},
			{`"behind"`, "", "the query has been answered"},
			{deepPayload, "", "the payload: RecursionError"},
			{bigPayload, "", "the payload: ValueError"},
			{`{"type":"cancel","requestId":"q1"}`, `{"type":"cancel","requestId":"q1"}`, ""},
		},
		"node testdata/odd.mjs": {
			{`"nan"`, "null", ""},
			{`"deep"`, "", "Maximum call stack"},
			{`"self"`, "", "circular"},
			{`"function"`, "", "is not JSON"},
			{`"symbol"`, "", "is not JSON"},
			{`"nothing as JSON"`, "", "is not JSON"},
			{`"send function"`, "", "is not JSON"},
			{`"big"`, "", "BigInt"},
			{`"undefined"`, "null", ""},
			{`"behind"`, `"left behind"`, ""},
			{`"behind"`, "", "the query has been answered"},
			{`"throw null"`, "", "null"},
			{`"throw undefined"`, "", "undefined"},
			{`"throw bare"`, "", "it threw a value that has no text"},
			{`"throw symbol"`, "", "Symbol(odd)"},
			{`"throw trap"`, "", "has no text"},
			{`"throw number"`, "", "42"},
			{`"reject bare"`, "", "has no text"},
			{`"thenable"`, "", "from a thenable"},
			{`"long"`, "", "longer than the limit"},
			{`"send long"`, "", "longer than the limit"},
			{`"long error"`, "", "xxx"},
			{`"surrogate"`, `"\ud800 😀"`, ""},
			{deepPayload, "", "the result: Maximum call stack"},
			{`{"__proto__":{"then":1},"type":"cancel","requestId":"q1"}`, `{"__proto__":{"then":1},"type":"cancel","requestId":"q1"}`, ""},
		},
		"ruby testdata/odd.rb": {
			{`"nan"`, "", "the result: JSON::GeneratorError"},
			{`"send nan"`, "", "JSON::GeneratorError"},
			{`"deep"`, "", "the result: JSON::NestingError"},
			{`"mute"`, "", "Undescribable"},
			{`"pipe"`, "", "of the handler's own"},
			{`"cancel"`, "", "cancelled"},
			{`"throw"`, "", "UncaughtThrowError"},
			{`"long"`, "", "longer than the limit"},
			{`"send long"`, "", "longer than the limit"},
			{`"long error"`, "", "RuntimeError: xxx"},
			{`"not UTF-8"`, "", "the result: "},
			{`"raise not UTF-8"`, "", "RuntimeError: "},
			{`"no bytes"`, "", "the bytes are no String"},
			{`"memory"`, "", "NoMemoryError"},
			{`"recursion"`, "", "SystemStackError"},
			{`"behind"`, `"left behind"`, ""},
			{`"behind"`, "", "the query has been answered"},
			{deepPayload, "", "the payload: SystemStackError"},
			{bigPayload, bigPayload, ""},
			{`"surrogate \ud83d\ude00"`, `"surrogate😀"`, ""},
			{`{"type":"cancel","requestId":"q1"}`, `{"type":"cancel","requestId":"q1"}`, ""},
		},
	} {
		args := strings.Fields(program)
		t.Run(args[0], func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skip(err)
			}
			p := startPool(t, func() *exec.Cmd {
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Env = append(os.Environ(), "PYTHONPATH=sdk/python")
				return cmd
			}, func(c *procpool.Config) { c.MaxFrame = 1 << 20 })
			pid := do(t, p, []byte(`"pid"`))
			for _, c := range cases {
				got, err := p.Do(within(t), []byte(c.payload))
				var failed *procpool.WorkerError
				name := c.payload[:min(len(c.payload), 30)]
				switch {
				case c.fails != "" && !(errors.As(err, &failed) && strings.Contains(failed.Message, c.fails)):
					t.Errorf("%s: got %.200s, %.300v, want %q in the worker's error", name, got, err, c.fails)
				case c.result != "" && (err != nil || !sameJSON(string(got), c.result)):
					t.Errorf("%s: got %.200s, %v, want %.200s", name, got, err, c.result)
				}
				if s := p.Stats(); s.Crashed != 0 {
					t.Fatalf("%s ended the worker: %v", name, err)
				}
			}
			if again := do(t, p, []byte(`"pid"`)); again != pid {
				t.Errorf("the worker is %s, and was %s", again, pid)
			}
		})
	}
}

func sameJSON(a, b string) bool {
	return strings.ReplaceAll(a, " ", "") == strings.ReplaceAll(b, " ", "")
}

// TestParentKilledBehindAWrapper is about workers that the kernel does not end
// with their parent, because a shell started them. They must end because their
// connection ends, and because the shell does when they are too busy to see that.
func TestParentKilledBehindAWrapper(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ program, mode, op string }{
		"go":                        {exe, "serve", "deaf-pid"},
		"python":                    {"python3 testdata/odd.py", "", "deaf-pid"},
		"node":                      {"node testdata/odd.mjs", "", "deaf-pid"},
		"go does not return":        {exe, "stays", "deaf-pid"},
		"python computes":           {"python3 testdata/odd.py", "", "spin-pid"},
		"node computes":             {"node testdata/odd.mjs", "", "spin-pid"},
		"ruby":                      {"ruby testdata/odd.rb", "", "deaf-pid"},
		"ruby computes":             {"ruby testdata/odd.rb", "", "spin-pid"},
		"node computes, behind two": {`sh -c "node testdata/odd.mjs & wait"`, "", "spin-pid"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(strings.Fields(c.program)[0]); err != nil {
				t.Skip(err)
			}
			if !isLinux() && strings.Contains(name, " ") {
				t.Skip("the parent-death signal is Linux's")
			}
			cmd := self("wrapped:" + socketDir(t))
			cmd.Env = append(cmd.Env, "WRAPPED="+c.program, "WRAPPED_MODE="+c.mode, "WRAPPED_OP="+c.op, "PYTHONPATH=sdk/python")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pids []int
			for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "all"; {
				var pid int
				if n, err := fmt.Sscanf(lines.Text(), "worker %d <nil>", &pid); n != 1 {
					t.Errorf("it said %q: %v", lines.Text(), err)
					continue
				}
				pids = append(pids, pid)
			}
			if c.op == "spin-pid" {
				time.Sleep(200 * time.Millisecond) // it begins to compute soon after it said its pid
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if len(pids) != 2 || pids[0] == pids[1] {
				t.Fatalf("the workers are %v", pids)
			}
			for _, pid := range pids {
				defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
				eventually(t, fmt.Sprintf("%d is gone", pid), func() bool { return !alive(pid) })
			}
		})
	}
}
