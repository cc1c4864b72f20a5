//go:build unix

package sdnotify

import (
	"errors"
	"os"
	"syscall"
)

// sendFile sends a message with a copy of a file. Package net has no such call for a socket that is
// connected.
func (s *Socket) sendFile(text []byte, file *os.File) error {
	socket, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	passed, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	waitErr := socket.Write(func(to uintptr) (done bool) {
		err := passed.Control(func(fd uintptr) {
			sendErr = syscall.Sendmsg(int(to), text, syscall.UnixRights(int(fd)), nil, 0)
		})
		sendErr = errors.Join(sendErr, err)
		return !errors.Is(sendErr, syscall.EAGAIN)
	})
	if waitErr != nil {
		return waitErr
	}
	return os.NewSyscallError("sendmsg", sendErr)
}
