//go:build !unix

package child

import (
	"io"
	"net"
)

// dedicate leaves the connection to the runtime's poller.
func dedicate(conn *net.UnixConn) io.ReadWriteCloser { return conn }
