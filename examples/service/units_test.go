package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

func environment(kv ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range kv {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

func TestFlagsBeatTheEnvironmentBeatsTheDefaults(t *testing.T) {
	c, err := parseConfig([]string{"-drain-interval=7s", "-linger=0"},
		environment("SERVICE_DRAIN_INTERVAL=6s", "SERVICE_SHUTDOWN_GRACE=9s", "SERVICE_ADDR=:1", "SERVICE_ALLOW_FAULTS=true", "OTHER=x"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if c.Lifecycle.DrainInterval != 7*time.Second {
		t.Errorf("the flag does not win: %v", c.Lifecycle.DrainInterval)
	}
	if c.Lifecycle.ShutdownGrace != 9*time.Second || c.Addr != ":1" || !c.AllowFaults {
		t.Errorf("the environment does not win: %+v", c)
	}
	if c.Poll != 500*time.Millisecond || c.Lifecycle.HealthAddr != ":8081" || c.Lifecycle.AcceptQuiet != 0 {
		t.Errorf("the defaults are gone: %+v", c)
	}
	if c.Lifecycle.Linger != lifecycle.Off {
		t.Errorf("-linger=0 is %v, want Off", c.Lifecycle.Linger)
	}
}

func TestBadConfigurationIsNamed(t *testing.T) {
	for want, tt := range map[string]struct {
		args []string
		env  []string
	}{
		"-drain-interval: want a duration such as 5s":     {args: []string{"-drain-interval=5"}},
		"-linger: want 0 or more":                         {args: []string{"-linger=-1s"}},
		"environment SERVICE_POLL=\"often\"":              {env: []string{"SERVICE_POLL=often"}},
		"environment SERVICE_LINGER=\"x\"":                {env: []string{"SERVICE_POLL=often", "SERVICE_LINGER=x"}},
		"-poll is 0s, want more than 0":                   {args: []string{"-poll=0s"}},
		"-log is \"xml\", want text, json or auto":        {args: []string{"-log=xml"}},
		"unexpected argument \"now\"":                     {args: []string{"now"}},
		"flag provided but not defined: -port; -h lists ": {args: []string{"-port=1"}},
	} {
		_, err := parseConfig(tt.args, environment(tt.env...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %q", err, want)
		}
	}
}

func TestHelpListsFlagsAndTheirVariables(t *testing.T) {
	var out strings.Builder
	if _, err := parseConfig([]string{"-h"}, environment(), &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("error is %v, want flag.ErrHelp", err)
	}
	for _, want := range []string{"-drain-interval", "SERVICE_DRAIN_INTERVAL", "-allow-faults"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the usage does not mention %s:\n%s", want, out.String())
		}
	}
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"5s", "0", "0s", "-1s", "", "1h1m1.5s", "9999999h", "5", "-0s", "1e3s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := time.Duration(42)
		if err := setDuration(&d, s); err != nil {
			if d != 42 {
				t.Errorf("%q is refused and sets %v", s, d)
			}
			return
		}
		if d != lifecycle.Off && d <= 0 {
			t.Errorf("%q is taken and is %v", s, d)
		}
	})
}

func TestDrainWaitsForTheLastMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler))
		_, leaveFirst := h.Join()
		_, leaveLast := h.Join()
		leaveFirst()
		leaveFirst() // a second time is fine
		go func() {
			time.Sleep(3 * time.Second)
			leaveLast()
		}()
		began := time.Now()
		if err := h.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("drained after %v, want 3s", took)
		}
	})
}

func TestDrainEndsWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler))
		m, leave := h.Join()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for range 100 {
			h.Tell("too much for one who does not read")
		}
		if err := h.Drain(ctx); err != nil {
			t.Errorf("error is %v: a client that does not listen is no failure", err)
		}
		if ctx.Err() == nil {
			t.Error("it returned before its window was over and with a member there")
		}
		if len(m.news) != cap(m.news) {
			t.Errorf("%d messages kept, want %d", len(m.news), cap(m.news))
		}
		leave()
		if h.Len() != 0 {
			t.Error("the member is still there")
		}
	})
}

func TestStoreKeepsWorkAndForgetsTemporaryFiles(t *testing.T) {
	for _, file := range []string{"", "plain.db", "odd name %41 #?&.db"} {
		t.Run(file, func(t *testing.T) {
			name := file
			if file != "" {
				name = filepath.Join(t.TempDir(), file)
			}
			s, err := openStore(name)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := s.Add(t.Context(), "a note"); err != nil {
					t.Fatal(err)
				}
			}
			if ids, err := s.Finish(t.Context(), 2); err != nil || len(ids) != 2 {
				t.Errorf("finished %v, %v, want two", ids, err)
			}
			if added, done, err := s.Count(t.Context()); added != 3 || done != 2 || err != nil {
				t.Errorf("count is %d, %d, %v, want 3 and 2", added, done, err)
			}
			temp := s.temp
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Ping(t.Context()); err == nil {
				t.Error("a closed database answers")
			}
			if file == "" {
				name = temp
			}
			if _, err := os.Stat(name); os.IsNotExist(err) != (file == "") {
				t.Errorf("%q after Close: %v", name, err)
			}
		})
	}
}
