package lifecycle

import (
	"bytes"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"
)

// The test reads the real file system and the machine's own limit, if it has one.
func TestMemoryLimitInRun(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	real := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(real)
	var log bytes.Buffer
	app, err := New(Config{MemoryLimitRatio: 0.9, HealthAddr: HealthOff, TerminationLog: "off"},
		WithSignals(nil), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	app.Actor("ends", func() error { return nil }, func(error) {})
	if err := app.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
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
