package procpool

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// makeProcess makes the worker's process from its command, with the output and the environment
// that the pool needs.
func (w *proc) makeProcess(d *acceptor) (process *worker.Process, err error) {
	err = call.Do(w.name, func() error {
		w.p.making.Lock()
		defer w.p.making.Unlock()
		cmd := w.program.command()
		if cmd == nil {
			return errors.New("the command is nil: Config.Command must return a worker's command")
		}
		w.connectOutput(cmd)
		env := append(d.env(cmd), w.p.lifeline.give(cmd),
			wire.EnvVersion+"="+strconv.Itoa(wire.Version),
			wire.EnvName+"="+w.name,
			wire.EnvMaxFrame+"="+strconv.Itoa(w.p.cfg.MaxFrame))
		opts := append(slices.Clip(w.p.cfg.Process), worker.WithGrace(w.p.cfg.KillGrace), worker.WithEnv(env...))
		process = worker.NewProcess(w.name, cmd, opts...)
		return nil
	})
	return process, err
}

// connectOutput passes the end of stderr on to errors, and logs output for which the command has no
// writer.
func (w *proc) connectOutput(cmd *exec.Cmd) {
	logged := func(stream string) *worker.LineLogger {
		lines := worker.LogLines(w.p.log.With("worker", w.name, "stream", stream), slog.LevelInfo, w.p.cfg.OutputLines)
		w.outputs = append(w.outputs, lines)
		return lines
	}
	w.stderr.Next = cmd.Stderr
	if w.p.cfg.OutputLines != Off {
		if cmd.Stderr == nil {
			w.stderr.Next = logged("stderr")
		}
		if cmd.Stdout == nil {
			cmd.Stdout = logged("stdout")
		}
	}
	cmd.Stderr = w.stderr
}

// checkPeer returns an error when the process that has connected is not in the worker's process
// group.
func (w *proc) checkPeer(pid, uid int) error {
	if pid == 0 {
		return nil // this system does not report the peer
	}
	if uid != os.Getuid() && uid != 0 && os.Getuid() != 0 {
		return fmt.Errorf("process %d of user %d has connected in the place of %s", pid, uid, w.name)
	}
	if group := groupOf(pid); group != w.process.PID() {
		return fmt.Errorf("process %d has connected in the place of %s and is not in its process group (%d, and its own is %d): "+
			"a worker must not leave it, by setsid or as a daemon", pid, w.name, w.process.PID(), group)
	}
	return nil
}
