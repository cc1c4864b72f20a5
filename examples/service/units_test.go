package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/config"
)

func loadConfig(args, environ []string) (Config, error) {
	return config.Load[Config]("service.yaml", config.WithOptionalFile(), config.WithArgs(args), config.WithEnviron(environ))
}

func TestConfigurationHasItsDefaults(t *testing.T) {
	c, err := loadConfig([]string{"-lifecycle.linger=3s"}, []string{"SERVICE_ALLOW_FAULTS=true"})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{}.WithDefaults()
	want.AllowFaults, want.Lifecycle.Linger = true, 3*time.Second
	if c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

func TestBadConfigurationIsNamed(t *testing.T) {
	for want, tt := range map[string]struct{ args, env []string }{
		"poll is 0s, want more than 0":                                        {args: []string{"-poll=0s"}},
		"log is \"xml\", want text, json or auto":                             {env: []string{"SERVICE_LOG=xml"}},
		"flag -drain-wait: there is no such flag: did you mean -lifecycle.dr": {args: []string{"-drain-wait=never"}},
	} {
		if _, err := loadConfig(tt.args, tt.env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %q", err, want)
		}
	}
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
			t.Errorf("error is %v: a client that ignores the goodbye must not be an error", err)
		}
		if ctx.Err() == nil {
			t.Error("it returned before its window was over, with a member connected")
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
