package isolate

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// process is a pool of one process that runs the code of one program.
type process struct {
	children *Children
	pool     *procpool.Pool
	cmd      atomic.Pointer[exec.Cmd] // of its process
	tooMany  atomic.Bool              // it had more than maxThreads threads
	stderr   *stderrText
	values   int // the most in an answer
}

const (
	// soon is how long a child may take for a step of its end. It has nothing to lose.
	soon = time.Millisecond
	// maxFrame bounds a message to and from a child: code of 32 MiB as JSON.
	maxFrame = 64 << 20
	// endTakes bounds the end of a child. The kernel ends a process that was killed sooner.
	endTakes = 10 * time.Second
	// maxThreads bounds the threads of a child.
	maxThreads = 256
)

// maxAnswer bounds a message of a child by what the limits of its worker allow: the outputs of
// one message as JSON, or one call.
func maxAnswer(cfg engine.Config) int {
	l := cfg.Limits
	outputs := 2*min(l.Output, maxFrame) + 64*int64(min(l.Outputs, maxFrame))
	call := min(cfg.MaxCall, maxFrame) * 4 / 3
	return int(min(max(outputs, call)+64<<10, maxFrame))
}

// Holds returns the most memory in which the host holds the answer to one message: a line
// while it is read, the messages that wait for the host, and an answer that is decoded.
func Holds(cfg engine.Config) int64 {
	return 4 * int64(maxAnswer(withDefaults(cfg)))
}

func withDefaults(cfg engine.Config) engine.Config {
	cfg.Limits = cfg.Limits.WithDefaults()
	cfg.MaxCall = cmp.Or(cfg.MaxCall, 1<<20)
	return cfg
}

// start starts a child for the code of one program.
func (e *isolated) start(cfg engine.Config) (*process, error) {
	c := &process{children: e.children, stderr: new(stderrText), values: maxValues(cfg.Limits)}
	s := spec{Read: systemFiles, Required: e.children.cfg.Required}
	if ext, ok := e.inner.(External); ok {
		argv, env, read := ext.Command()
		s.Exec, s.Env, s.Read = argv, env, append(read, s.Read...)
	}
	pool, err := procpool.New(procpool.Config{
		Name: "engine-" + cfg.Worker,
		Command: func() *exec.Cmd {
			cmd := e.children.command(s, c.stderr)
			c.cmd.Store(cmd)
			return cmd
		},
		Process:        e.children.processOptions(cfg.Limits.Memory + margin),
		MaxWorkers:     1,
		MaxQueue:       1,
		Inherit:        true,
		QueryTimeout:   math.MaxInt64 / 4,
		StartTimeout:   e.children.cfg.StartTimeout,
		BreakAfter:     1,
		CancelGrace:    soon,
		ShutdownGrace:  soon,
		KillGrace:      soon,
		DrainTimeout:   soon,
		HealthInterval: procpool.Off,
		MaxFrame:       maxFrame,
		MaxAnswer:      maxAnswer(cfg),
		OutputLines:    procpool.Off,
		Logger:         slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = pool.Start(context.Background())
	}
	if err != nil {
		return nil, err
	}
	c.pool = pool
	e.children.running.Add(1)
	e.children.started.Add(1)
	return c, nil
}

// processOptions returns the options of a child's process.
func (c *Children) processOptions(memory int64) []worker.ProcessOption {
	if len(c.cfg.Cgroups) == 0 {
		return nil
	}
	limits := worker.Limits{Memory: memory, PIDs: maxThreads, Required: c.cfg.Required}
	return []worker.ProcessOption{worker.WithCgroup(c.cfg.Cgroups...), worker.WithLimits(limits)}
}

// command returns the command of a child. The pool adds the connection.
func (c *Children) command(s spec, stderr *stderrText) *exec.Cmd {
	if c == withoutFloor {
		cmd := exec.Command(s.Exec[0], s.Exec[1:]...)
		cmd.Env, cmd.Stderr = s.Env, stderr
		return cmd
	}
	cmd := exec.Command(c.self)
	cmd.Env = []string{envRole + "=" + roleLaunch, envSpec + "=" + s.encode()}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	c.setUser(cmd)
	return cmd
}

// end ends the process.
func (c *process) end() error {
	c.children.threads.remove(c)
	ctx, cancel := context.WithTimeout(context.Background(), endTakes)
	defer cancel()
	err := c.pool.Stop(ctx)
	c.children.running.Add(-1)
	return err
}
