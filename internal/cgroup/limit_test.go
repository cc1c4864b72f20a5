package cgroup

import (
	"bytes"
	"io/fs"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
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
			LimitMemory(slog.New(slog.NewTextHandler(&log, nil)), groupWith(c.group), c.ratio)
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if !strings.Contains(log.String(), c.says) || c.says == "" && log.Len() > 0 {
				t.Errorf("logged %q, want %q", log.String(), c.says)
			}
		})
	}
}
