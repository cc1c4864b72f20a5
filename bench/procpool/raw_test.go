//go:build unix

package procpool

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
)

// rawPool has one worker behind a unix socket, which cmd connects to. A message is its
// length and its bytes, and both sides read it into the same buffer each time: the floor
// for bytes.
func rawPool(command func(socket string) *exec.Cmd) (pool, error) {
	dir, err := os.MkdirTemp("", "raw")
	if err != nil {
		return pool{}, err
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		return pool{}, err
	}
	cmd := command(dir + "/s")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return pool{}, err
	}
	conn, err := l.Accept()
	if err != nil {
		return pool{}, err
	}
	var buf []byte
	return pool{
		echo: func(p json.RawMessage) (_ json.RawMessage, err error) {
			if err := writeRaw(conn, p); err != nil {
				return nil, err
			}
			buf, err = readRaw(conn, buf)
			return buf, err
		},
		stop: func() {
			conn.Close()
			_ = cmd.Wait()
			l.Close()
			os.RemoveAll(dir)
		},
	}, nil
}

func writeRaw(conn net.Conn, b []byte) error {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(b)))
	all := net.Buffers{head, b}
	_, err := all.WriteTo(conn)
	return err
}

func readRaw(conn net.Conn, buf []byte) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return buf, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	_, err := io.ReadFull(conn, buf[:n])
	return buf[:n], err
}

// serveRaw returns what it gets.
func serveRaw(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	for buf := []byte(nil); ; {
		if buf, err = readRaw(conn, buf); err != nil {
			return
		}
		if err := writeRaw(conn, buf); err != nil {
			return
		}
	}
}
