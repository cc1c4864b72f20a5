package lifecycle

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
		before int64 // in force already
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
			real := debug.SetMemoryLimit(c.before)
			defer debug.SetMemoryLimit(real)
			var log bytes.Buffer
			app := &App{cfg: Config{MemoryLimitRatio: c.ratio}, log: slog.New(slog.NewTextHandler(&log, nil))}
			app.limitMemory(groupWith(c.group))
			if got := debug.SetMemoryLimit(-1); got != c.want {
				t.Errorf("the limit is %d, want %d", got, c.want)
			}
			if !strings.Contains(log.String(), c.says) || c.says == "" && log.Len() > 0 {
				t.Errorf("logged %q, want %q", log.String(), c.says)
			}
		})
	}
}

// With a real file system and a real Run, on whatever machine this is.
func TestMemoryLimitInRun(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	real := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(real)
	var log bytes.Buffer
	app, err := New(Config{MemoryLimitRatio: 0.9, HealthAddr: HealthOff, TerminationLog: "off"},
		WithSignals(nil), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	must(t, err)
	app.Actor("ends", func() error { return nil }, func(error) {})
	must(t, app.Run(t.Context()))
	set := debug.SetMemoryLimit(-1) != math.MaxInt64
	if set != strings.Contains(log.String(), "memory limit set") || !strings.Contains(log.String(), "memory limit") {
		t.Errorf("the limit is set: %v; the log says\n%s", set, log.String())
	}
}

func TestMemoryLimitRatioIsValidated(t *testing.T) {
	for _, r := range []float64{-0.1, 1.1, 90, math.NaN(), math.Inf(1)} {
		if err := (Config{MemoryLimitRatio: r}).Validate(); err == nil || !strings.Contains(err.Error(), "MemoryLimitRatio") {
			t.Errorf("MemoryLimitRatio %v: %v, want an error that names it", r, err)
		}
	}
}
