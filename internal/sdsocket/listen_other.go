//go:build !linux

package sdsocket

import (
	"errors"
	"net"
)

func inherit(int, bool) {}

func listener(int) (net.Listener, error) {
	return nil, errors.New("socket activation works on Linux only")
}
