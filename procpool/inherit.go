package procpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// inheritedPair makes an acceptor that needs no socket in the file system: the worker inherits
// one end of a connection. No other process can connect.
func inheritedPair(limit int) (*acceptor, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("make a connection for the worker: %w", err)
	}
	defer ours.Close() // FileConn makes a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("make a connection for the worker: %w", err)
	}
	own, ok := conn.(*net.UnixConn)
	if !ok {
		theirs.Close()
		conn.Close()
		return nil, errors.New("make a connection for the worker: it is not a unix socket")
	}
	d := &acceptor{ours: own, theirs: theirs, limit: limit, opened: make(chan readyConn, 1)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// env returns the environment variables that tell a worker how to reach the pool. The
// other one is empty: this process may be a worker itself. It adds an inherited
// connection to the files of the command.
func (d *acceptor) env(cmd *exec.Cmd) []string {
	if d.theirs == nil {
		return []string{wire.EnvSocket + "=" + d.path, wire.EnvFD + "="}
	}
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), d.theirs)
	return []string{wire.EnvSocket + "=", wire.EnvFD + "=" + strconv.Itoa(2+len(cmd.ExtraFiles))}
}
