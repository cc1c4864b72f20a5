package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
)

// Config is the configuration of the examples' service.
type Config struct {
	Addr      string        `usage:"serve HTTP on this address"`
	Poll      time.Duration `usage:"look for work this often"`
	Lifecycle lifecycle.Config
}

// WithDefaults returns the defaults.
func (Config) WithDefaults() Config { return Config{Addr: ":8080", Poll: time.Second} }

func ExampleLoad() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "service.yaml")
	load := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			fmt.Println(err)
			return
		}
		// A program passes only the name; it has its own environment and flags.
		cfg, err := config.Load[Config](file,
			config.WithEnviron([]string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL=10s"}),
			config.WithArgs([]string{"-lifecycle.shutdown-grace=30s"}))
		if err != nil {
			var fault *config.Fault // the first fault; print err for all
			errors.As(err, &fault)
			fmt.Printf("line %d, %s: %s\n", fault.Line, fault.Key, fault.Problem)
			return
		}
		fmt.Println(cfg.Addr, cfg.Poll, cfg.Lifecycle.DrainInterval, cfg.Lifecycle.ShutdownGrace)
	}
	load("poll: 2s\nlifecycle:\n  drain_interval: 7s\n")
	load("poll: 2s\nlifecycle:\n  drain_intervall: 7s\n")
	// Output:
	// :8080 2s 10s 30s
	// line 3, lifecycle.drain_intervall: there is no such key: did you mean drain_interval?
}

func ExampleLive_Attach() {
	run := func() error {
		live, err := config.Open[Config]("service.yaml")
		if err != nil {
			return err
		}
		live.OnChange(func(old, next Config) { fmt.Println("poll was", old.Poll, "and is", next.Poll) })
		app, err := lifecycle.New(live.Get().Lifecycle)
		if err != nil {
			return err
		}
		return live.Attach(app).Run(context.Background())
	}
	_ = run
}

func BenchmarkLoad(b *testing.B) {
	file := filepath.Join(b.TempDir(), "service.yaml")
	if err := os.WriteFile(file, []byte("poll: 2s\nlifecycle:\n  drain_interval: 7s\n  linger: 2s\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := config.Load[Config](file, config.WithEnviron(nil), config.WithArgs(nil)); err != nil {
			b.Fatal(err)
		}
	}
}
