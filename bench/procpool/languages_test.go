//go:build unix

package procpool

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// language compares a worker of this library in another language with the library that users
// of that language take to run a function in another process. With that library the caller is a
// program in the language too.
type language struct {
	name   string
	ours   []string // the worker
	raw    []string // returns what comes from the socket that is its last argument
	native []string // the program that has the pools; see testdata
	pools  []string
}

var languages = []language{
	{"python", []string{"python3", "../../procpool/sdk/python/example.py"}, []string{"python3", "testdata/raw.py"}, []string{"python3", "testdata/pools.py"}, []string{"ProcessPoolExecutor", "multiprocessing.Pool"}},
	{"node", []string{"node", "../../procpool/sdk/node/example.mjs"}, []string{"node", "testdata/raw.mjs"}, []string{"node", "testdata/pools.mjs"}, []string{"workerpool"}},
}

// tripper makes n round trips and returns how long each took.
type tripper struct {
	trips func(n int) ([]time.Duration, error)
	stop  func()
}

// contenders are the ways of a language to have a payload of a size echoed.
func (l language) contenders(size int) map[string]func() (tripper, error) {
	here := func(p pool, err error) (tripper, error) {
		q := value(size, "")
		return tripper{func(n int) ([]time.Duration, error) {
			took := make([]time.Duration, 0, n)
			for range n {
				began := time.Now()
				got, err := p.echo(q)
				if err != nil || len(got) != len(q) {
					return nil, errors.Join(err, fmt.Errorf("%d bytes of %d came back", len(got), len(q)))
				}
				took = append(took, time.Since(began))
			}
			return took, nil
		}, p.stop}, err
	}
	all := map[string]func() (tripper, error){
		"floor": func() (tripper, error) {
			return here(rawPool(func(socket string) *exec.Cmd {
				return exec.Command(l.raw[0], append(l.raw[1:len(l.raw):len(l.raw)], socket)...)
			}))
		},
		"lifecycle-go":       func() (tripper, error) { return here(ourPoolOf(1, exec.Command(l.ours[0], l.ours[1:]...))) },
		"lifecycle-go.bytes": func() (tripper, error) { return here(ourBytesPoolOf(1, exec.Command(l.ours[0], l.ours[1:]...))) },
	}
	for _, name := range l.pools {
		all[name] = func() (tripper, error) { return l.program(name, size) }
	}
	return all
}

// order is the order of the contenders.
func (l language) order() []string {
	return append([]string{"floor", "lifecycle-go", "lifecycle-go.bytes"}, l.pools...)
}

// program starts the program that has a pool of the language.
func (l language) program(name string, size int) (tripper, error) {
	cmd := exec.Command(l.native[0], append(l.native[1:len(l.native):len(l.native)], name, strconv.Itoa(size))...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return tripper{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return tripper{}, err
	}
	if err := cmd.Start(); err != nil {
		return tripper{}, err
	}
	lines := bufio.NewReader(out)
	stop := func() {
		in.Close()
		_ = cmd.Wait()
	}
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		stop()
		return tripper{}, fmt.Errorf("%s: it said %q, %w", name, line, errors.Join(err, errors.New("want ready")))
	}
	return tripper{func(n int) ([]time.Duration, error) {
		if _, err := fmt.Fprintln(in, n); err != nil {
			return nil, err
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, err
		}
		var took []time.Duration
		for _, text := range strings.Fields(line) {
			ns, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, err
			}
			took = append(took, time.Duration(ns))
		}
		if len(took) != n {
			return nil, fmt.Errorf("%s: %d round trips, want %d", name, len(took), n)
		}
		return took, nil
	}, stop}, nil
}

// missing returns why a contender cannot be measured on this machine, "" when it can.
func (l language) missing(name string) string {
	if _, err := exec.LookPath(l.ours[0]); err != nil {
		return l.ours[0] + " is not installed: apt-get install " + map[string]string{"python": "python3", "node": "nodejs"}[l.name]
	}
	if _, err := os.Stat("testdata/node_modules/workerpool"); name == "workerpool" && errors.Is(err, fs.ErrNotExist) {
		return "workerpool is not installed: make bench/procpool/testdata/node_modules"
	}
	return ""
}

// BenchmarkLanguages has one caller and one worker that echoes, in Python and in Node.
func BenchmarkLanguages(b *testing.B) {
	for _, l := range languages {
		for _, size := range sizes {
			for _, name := range l.order() {
				b.Run(fmt.Sprintf("language=%s/size=%s/peer=%s", l.name, size.name, name), func(b *testing.B) {
					if why := l.missing(name); why != "" {
						b.Skip(why)
					}
					t, err := l.contenders(size.n)[name]()
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(t.stop)
					took.reset()
					b.ResetTimer()
					all, err := t.trips(b.N)
					b.StopTimer()
					if err != nil {
						b.Fatal(err)
					}
					for _, d := range all {
						took.add(d)
					}
					b.ReportMetric(float64(took.median().Nanoseconds()), "p50-ns")
				})
			}
		}
	}
}

func TestLanguagesDoTheWork(t *testing.T) {
	for _, l := range languages {
		for _, size := range []int{100, 1 << 20} {
			for name, start := range l.contenders(size) {
				t.Run(fmt.Sprintf("%s/%d/%s", l.name, size, name), func(t *testing.T) {
					if why := l.missing(name); why != "" {
						t.Skip(why)
					}
					c, err := start()
					if err != nil {
						t.Fatal(err)
					}
					defer c.stop()
					if all, err := c.trips(3); err != nil || len(all) != 3 {
						t.Errorf("%v, %v", all, err)
					}
				})
			}
		}
	}
}
