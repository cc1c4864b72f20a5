package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"syscall"
)

// shape describes the parts of an error.
type shape struct {
	known bool    // its type's own methods run no foreign code
	lazy  bool    // its Error calls the Error of the error that it wraps
	size  int     // bytes of its own text
	inner error   // the error that it wraps
	parts []error // or the errors that it wraps
}

// The types of the standard library that have no name outside it.
var (
	plainType    = reflect.TypeOf(io.EOF)
	wrapType     = reflect.TypeOf(fmt.Errorf("%w", io.EOF))
	wrapAllType  = reflect.TypeOf(fmt.Errorf("%w%w", io.EOF, io.EOF))
	joinType     = reflect.TypeOf(errors.Join(io.EOF))
	ctxLateType  = reflect.TypeOf(context.DeadlineExceeded)
	netCloseType = reflect.TypeOf(net.ErrClosed)
	ioLateType   = reflect.TypeOf(os.ErrDeadlineExceeded)
)

// shapeOf returns the shape of an error of a known type. It returns the zero
// shape for any other error, for a nil pointer, and for an error without the
// fields that its Error needs.
func shapeOf(err error) shape {
	switch reflect.TypeOf(err) {
	case plainType:
		return shape{known: true, size: len(err.Error())}
	case wrapType:
		return shape{known: true, size: len(err.Error()), inner: errors.Unwrap(err)}
	case wrapAllType:
		return shape{known: true, size: len(err.Error()), parts: unwrapAll(err)}
	case joinType:
		return shape{known: true, lazy: true, parts: unwrapAll(err)}
	case ctxLateType, netCloseType, ioLateType:
		return shape{known: true}
	}
	switch e := err.(type) { //nolint:errorlint // err itself
	case *frozen, *frozenOne, *frozenMany, syscall.Errno:
		return shape{known: true}
	case *PanicError:
		return shape{known: e != nil && e.frozen}
	case *AbandonedError:
		return shape{known: e != nil}
	case *fs.PathError:
		if e != nil {
			return wraps(e.Err, len(e.Op)+len(e.Path))
		}
	case *os.SyscallError:
		if e != nil {
			return wraps(e.Err, len(e.Syscall))
		}
	case *os.LinkError:
		if e != nil {
			return wraps(e.Err, len(e.Op)+len(e.Old)+len(e.New))
		}
	case *net.OpError:
		if e != nil && isPlainAddr(e.Source) && isPlainAddr(e.Addr) {
			return wraps(e.Err, len(e.Op)+len(e.Net))
		}
	case *net.DNSError:
		if e != nil {
			return shape{known: true, size: len(e.Name) + len(e.Server) + len(e.Err), inner: e.UnwrapErr}
		}
	case *exec.Error:
		if e != nil {
			return wraps(e.Err, len(e.Name))
		}
	case *exec.ExitError:
		return shape{known: e != nil}
	case *strconv.NumError:
		if e != nil {
			return wraps(e.Err, len(e.Func)+len(e.Num))
		}
	}
	return shape{}
}

// wraps returns the shape of a struct whose Error calls the Error of its inner
// error.
func wraps(inner error, size int) shape {
	if inner == nil {
		return shape{}
	}
	return shape{known: true, lazy: true, size: size, inner: inner}
}

func unwrapAll(err error) []error {
	return err.(interface{ Unwrap() []error }).Unwrap() //nolint:errcheck,forcetypeassert // shapeOf has looked at the type
}

// isPlainAddr reports whether the methods of an address are the standard
// library's.
func isPlainAddr(a net.Addr) bool {
	switch a.(type) {
	case nil, *net.TCPAddr, *net.UDPAddr, *net.UnixAddr, *net.IPAddr:
		return true
	}
	return false
}
