package isolate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// process is a pool of one process that runs the code of one program.
type process struct {
	children *Children
	pool     *procpool.Pool
	stderr   *stderrText
	dir      string // private to it; "" for none
}

const (
	// soon is how long a child may take for a step of its end. It has nothing to lose.
	soon = time.Millisecond
	// maxFrame bounds a message to and from a child: code of 32 MiB as JSON.
	maxFrame = 64 << 20
	// endTakes bounds the end of a child. The kernel ends a process that was killed sooner.
	endTakes = 10 * time.Second
	// maxThreads bounds the threads of a child with a cgroup.
	maxThreads = 256
)

// start starts a child for the code of one program.
func (e *isolated) start(cfg engine.Config) (*process, error) {
	c := &process{children: e.children, stderr: new(stderrText)}
	s := spec{Read: systemFiles, Required: e.children.cfg.Required}
	if ext, ok := e.inner.(External); ok {
		if err := c.prepareExternal(ext, &s); err != nil {
			return nil, errors.Join(err, c.removeDir())
		}
	}
	pool, err := procpool.New(procpool.Config{
		Name:           "engine-" + cfg.Worker,
		Command:        func() *exec.Cmd { return e.children.command(s, c.stderr) },
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
		OutputLines:    procpool.Off,
		Logger:         slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = pool.Start(context.Background())
	}
	if err != nil {
		return nil, errors.Join(err, c.removeDir())
	}
	c.pool = pool
	e.children.running.Add(1)
	e.children.started.Add(1)
	return c, nil
}

// prepareExternal makes a private folder for another program, and writes the program into s.
func (c *process) prepareExternal(ext External, s *spec) (err error) {
	if c.dir, err = os.MkdirTemp("", "lifecycle-engine-"); err != nil {
		return fmt.Errorf("make a folder for a child: %w", err)
	}
	if cfg := c.children.cfg; cfg.UID != 0 {
		if err := os.Chown(c.dir, cfg.UID, cfg.GID); err != nil {
			return err
		}
	}
	var read []string
	s.Exec, s.Env, read, err = ext.Command(c.dir)
	s.Read = append(read, s.Read...)
	s.Write = c.dir
	return err
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

// end ends the process and removes its folder.
func (c *process) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTakes)
	defer cancel()
	err := c.pool.Stop(ctx)
	c.children.running.Add(-1)
	return errors.Join(err, c.removeDir())
}

func (c *process) removeDir() error {
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}
