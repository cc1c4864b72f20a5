package isolate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ErrNoProgram is wrapped by the error of [New] when there is no program to run
// children with.
var ErrNoProgram = errors.New("no program for child processes")

// Config says how children run. The zero value of a field is its default.
type Config struct {
	// Program is the path of the program that runs code: fleet/cmd/engine, or one
	// whose main calls [Main] first. Defaults to this process's own program, which
	// must have called [Main].
	Program string `koanf:"program"`
	// Idle is how long a child runs without a message. Defaults to 1 min.
	Idle time.Duration `koanf:"idle"`
	// StartTimeout bounds the start of a child. Defaults to 30 s.
	StartTimeout time.Duration `koanf:"start_timeout"`
	// Cgroups are directories that were delegated to this process: see
	// worker.WithCgroup. Each child gets a cgroup below them, with its memory limit.
	// A child ends with everything in its cgroup. Defaults to none.
	Cgroups []string `koanf:"cgroups"`
	// UID and GID, when not 0, are the user and group of the children. The process
	// needs the privilege to set them.
	UID int `koanf:"uid"`
	// GID defaults to UID.
	GID int `koanf:"gid"`
	// Required makes a child fail to start when a part of the floor is missing.
	Required bool `koanf:"required"`
}

// External is an [engine.Engine] whose code another program than Go's runs, such as
// an interpreter. The program speaks package procpool's protocol with the asks of
// this package.
type External interface {
	engine.Engine
	// Command returns the program's arguments, the first of which is a path, its
	// environment, and the files and folders that it reads.
	Command() (argv, env, read []string)
}

// Children makes engines whose code runs in children. Its methods may be called
// concurrently.
type Children struct {
	cfg  Config
	self string

	started, killed atomic.Uint64
	running         atomic.Int64
	threads         threadWatch
}

// selfRuns is set once this process has called [Main].
var selfRuns atomic.Bool

// New returns children of cfg. It returns an error that wraps [ErrNoProgram] when cfg has
// no program and this process has not called [Main].
func New(cfg Config) (*Children, error) {
	cfg.Idle = cmp.Or(cfg.Idle, time.Minute)
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, 30*time.Second)
	cfg.GID = cmp.Or(cfg.GID, cfg.UID)
	if cfg.Idle < 0 || cfg.StartTimeout < 0 || cfg.UID < 0 || cfg.GID < 0 {
		return nil, errors.New("isolate: idle, start_timeout, uid and gid must not be negative")
	}
	c := &Children{cfg: cfg, self: cfg.Program}
	var err error
	switch {
	case cfg.Program != "":
		if c.self, err = exec.LookPath(cfg.Program); err != nil {
			return nil, fmt.Errorf("isolate: %w: %w", ErrNoProgram, err)
		}
	case !selfRuns.Load():
		return nil, fmt.Errorf("isolate: %w: call host.EngineMain first in main, name the program fleet/cmd/engine, "+
			"or run code that you trust in this process with engine.Trusted", ErrNoProgram)
	case runtime.GOOS == "linux":
		c.self = "/proc/self/exe" // it is there when the file was replaced or removed
	default:
		if c.self, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("isolate: %w: %w", ErrNoProgram, err)
		}
	}
	return c, nil
}

// Stats says what the children do.
type Stats struct {
	Running int    // children that have been started and have not ended
	Started uint64 // children until now
	Killed  uint64 // children that their code ended, or that were ended to end their code
}

// Stats returns the present counts.
func (c *Children) Stats() Stats {
	return Stats{int(c.running.Load()), c.started.Load(), c.killed.Load()}
}

// Engine returns an engine that runs the code of e in children. The engine takes the
// MIME type alone. A trusted engine is returned as it is.
func (c *Children) Engine(mimeType string, e engine.Engine) engine.Engine {
	if engine.IsTrusted(e) {
		return e
	}
	return &isolated{children: c, mime: mimeType, inner: e}
}

// Bare returns an engine that runs the code of e in children without a floor. It
// needs no call of [Main].
func Bare(mimeType string, e External) interface {
	engine.Engine
	engine.LateLoader
} {
	return &isolated{children: withoutFloor, mime: mimeType, inner: e}
}

var withoutFloor = &Children{cfg: Config{Idle: time.Minute, StartTimeout: 30 * time.Second}}
