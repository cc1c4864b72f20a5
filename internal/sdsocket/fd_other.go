//go:build !linux

package sdsocket

import (
	"errors"
	"net"
	"os"
)

var errLinux = errors.New("sockets are taken and handed over on Linux only")

func closeOnExec(int) {}

func closeFD(int) {}

func listener(int) (net.Listener, error) { return nil, errLinux }

func packetConn(int) (net.PacketConn, error) { return nil, errLinux }

func copyFD(int) (*os.File, error) { return nil, errLinux }

func Copy(any) (*os.File, error) { return nil, errLinux }
