package cgroup

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

func groupWith(limit string) fs.FS {
	return fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"proc/self/mountinfo":      {Data: []byte("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte(limit)},
	}
}

func TestMemoryLimitComesFromTheControlGroup(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		ratio  float64
		group  string
		env    string
		before int64 // the limit before the call
		want   int64
		says   string
	}{
		"off":                {0, "1073741824", "", math.MaxInt64, math.MaxInt64, ""},
		"ninety percent":     {0.9, "1073741824", "", math.MaxInt64, gib * 9 / 10, "memory limit set"},
		"all of it":          {1, "1073741824", "", math.MaxInt64, gib, "memory limit set"},
		"no limit":           {0.9, "max", "", math.MaxInt64, math.MaxInt64, "no control group has one"},
		"nonsense":           {0.9, "a lot", "", math.MaxInt64, math.MaxInt64, "memory.max"},
		"GOMEMLIMIT wins":    {0.9, "1073741824", "off", math.MaxInt64, math.MaxInt64, "GOMEMLIMIT"},
		"the program's wins": {0.9, "1073741824", "", 3 * gib, 3 * gib, "set already"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOMEMLIMIT", c.env)
			before := debug.SetMemoryLimit(c.before)
			defer debug.SetMemoryLimit(before)
			var log bytes.Buffer
			LimitMemory(ended(), slog.New(slog.NewTextHandler(&log, nil)), groupWith(c.group), c.ratio)
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if !strings.Contains(log.String(), c.says) || c.says == "" && log.Len() > 0 {
				t.Errorf("logged %q, want %q", log.String(), c.says)
			}
		})
	}
}

// ended returns a context that has ended: the limit is not followed.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// group is a control group whose limit changes.
type group struct {
	v1    bool
	limit string
}

func (g *group) Open(name string) (fs.File, error) {
	files := fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"proc/self/mountinfo":      {Data: []byte("30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte(g.limit)},
	}
	if g.v1 {
		files = fstest.MapFS{
			"proc/self/cgroup":                           {Data: []byte("4:memory:/\n")},
			"proc/self/mountinfo":                        {Data: []byte("40 35 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n")},
			"sys/fs/cgroup/memory/memory.limit_in_bytes": {Data: []byte(g.limit)},
		}
	}
	return files.Open(name)
}

// A pod that is resized in place: the limit follows, up, down, and when there is none
// any more.
func TestMemoryLimitFollowsTheControlGroup(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	for name, v1 := range map[string]bool{"v1": true, "v2": false} {
		t.Run(name, func(t *testing.T) {
			before := debug.SetMemoryLimit(math.MaxInt64)
			defer debug.SetMemoryLimit(before)
			none := map[bool]string{true: "9223372036854771712", false: "max"}[v1]
			var log bytes.Buffer
			g := &group{v1, "1000000000"}
			f := &follower{log: slog.New(slog.NewTextHandler(&log, nil)), root: g, ratio: 0.5, set: math.MaxInt64}
			for _, step := range []struct {
				limit string
				want  int64
				lines int
			}{
				{"1000000000", 500000000, 1}, {"1000000000", 500000000, 1}, {"3000000000", 1500000000, 2}, {"800000000", 400000000, 3},
				{none, math.MaxInt64, 4}, {"2000000000", 1000000000, 5}, {"nonsense", 1000000000, 6}, {"nonsense", 1000000000, 6}, {"4000000000", 2000000000, 7},
			} {
				g.limit = step.limit
				f.read()
				if got := debug.SetMemoryLimit(-1); got != step.want || strings.Count(log.String(), "\n") != step.lines {
					t.Errorf("%s: the limit is %d, want %d and %d lines:\n%s", step.limit, got, step.want, step.lines, &log)
				}
			}
			debug.SetMemoryLimit(77e9) // by the program
			g.limit = "5000000000"
			f.read()
			f.read()
			if got := debug.SetMemoryLimit(-1); got != 77e9 || strings.Count(log.String(), "the program has set one") != 1 {
				t.Errorf("the program's limit is now %d:\n%s", got, &log)
			}
		})
	}
}

// resized is a control group that is another one from time to time.
type resized struct{ atomic.Pointer[group] }

func (r *resized) Open(name string) (fs.File, error) { return r.Load().Open(name) }

// The control group is read again every 10 seconds, until the context ends.
func TestMemoryLimitIsReadAgain(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		g := &resized{}
		g.Store(&group{limit: "1000000000"})
		LimitMemory(ctx, slog.New(slog.DiscardHandler), g, 0.5)
		look := func(limit string, want int64) {
			t.Helper()
			g.Store(&group{limit: limit})
			time.Sleep(readEvery + time.Second)
			synctest.Wait()
			if got := debug.SetMemoryLimit(-1); got != want {
				t.Errorf("the limit is %d, want %d", got, want)
			}
		}
		look("3000000000", 1500000000)
		end()
		look("5000000000", 1500000000)
	})
}
