package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// connect connects to the pool, or takes the connection that the pool has made.
func connect(ctx context.Context) (io.ReadWriteCloser, error) {
	if text := os.Getenv(wire.EnvFD); text != "" {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 3 {
			return nil, fmt.Errorf("%s is %q, want the number of a descriptor", wire.EnvFD, text)
		}
		file := os.NewFile(uintptr(fd), "pool")
		defer file.Close() // FileConn makes a copy, which no other process inherits
		conn, err := net.FileConn(file)
		if err != nil {
			return nil, fmt.Errorf("take the connection to the pool, descriptor %d: %w", fd, err)
		}
		own, ok := conn.(*net.UnixConn)
		if !ok {
			conn.Close()
			return nil, fmt.Errorf("take the connection to the pool, descriptor %d: %w", fd, errors.New("it is not a unix socket"))
		}
		return dedicate(own), nil
	}
	path := os.Getenv(wire.EnvSocket)
	if path == "" {
		return nil, ErrNoPool
	}
	dialed, err := new(net.Dialer).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("connect to the pool: %w", err)
	}
	return dedicate(dialed), nil
}
