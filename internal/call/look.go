package call

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
)

// node is an error and what it wraps, as they were when the library looked. Comparing the
// errors runs no foreign code.
type node struct {
	err     error
	accepts []error // the sentinels that its Is method accepts
	inner   []node
	cut     bool // it wraps more than was looked at
}

// The library looks at this many errors of a tree, and this deep. An error that wraps
// itself has no end.
const (
	maxNodes = 1000
	maxDepth = 100
)

// look returns the tree of an error. It calls the Unwrap and Is methods of the errors that
// are not kept yet; the caller runs on the goroutine that made them, or has made them itself.
func look(err error) node {
	left := maxNodes
	return lookInto(err, maxDepth, &left)
}

func lookInto(err error, depth int, left *int) node {
	if k, ok := err.(*kept); ok { //nolint:errorlint // err itself
		if !k.isRead() {
			return node{err: k.err, cut: true}
		}
		return k.tree
	}
	n := node{err: err}
	parts := n.ask()
	for _, part := range parts {
		if part == nil {
			continue
		}
		if *left--; *left < 0 || depth == 0 {
			n.cut = true
			break
		}
		n.inner = append(n.inner, lookInto(part, depth-1, left))
	}
	return n
}

// ask calls the methods of the error. A panic in one of them counts as no answer.
func (n *node) ask() (parts []error) {
	defer func() {
		if recover() != nil {
			n.cut = true
		}
	}()
	if e, ok := n.err.(interface{ Is(error) bool }); ok {
		for _, target := range *sentinels.Load() {
			if e.Is(target) {
				n.accepts = append(n.accepts, target)
			}
		}
	}
	switch e := n.err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		parts = []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		parts = slices.Clone(e.Unwrap())
	}
	return parts
}

// means reports whether the error itself is target.
func (n *node) means(target error) bool {
	return Same(n.err, target) || slices.ContainsFunc(n.accepts, func(a error) bool { return Same(a, target) })
}

// any reports whether fn is true for the error or one that it wraps.
func (n *node) any(fn func(*node) bool) bool {
	if fn(n) {
		return true
	}
	for i := range n.inner {
		if n.inner[i].any(fn) {
			return true
		}
	}
	return false
}

// only reports whether fn is true for the error, or for everything that it wraps.
func (n *node) only(fn func(*node) bool) bool {
	if fn(n) {
		return true
	}
	for i := range n.inner {
		if !n.inner[i].only(fn) {
			return false
		}
	}
	return len(n.inner) > 0 && !n.cut
}

// Is is errors.Is for the library's own decisions: for a kept error it runs no foreign
// code. Methods named Is have answered for the targets that [Sentinels] names.
func Is(err, target error) bool {
	if err == nil || target == nil {
		return false
	}
	if isLeaf(err) { // by far the most frequent; a look would make a new goroutine's stack grow
		return err == target //nolint:errorlint // it wraps nothing
	}
	n := look(err)
	return n.any(func(n *node) bool { return n.means(target) })
}

// Only reports whether err is one of the targets, or wraps nothing else: a failure that is
// joined with a harmless error is still a failure. A nil target is none.
func Only(err error, targets ...error) bool {
	if err == nil {
		return false
	}
	n := look(err)
	return n.only(func(n *node) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return t != nil && n.means(t) })
	})
}

// As is errors.As for the library's own decisions: it finds the first error of type T in
// the tree of a kept error and runs no foreign code.
func As[T error](err error) (found T, ok bool) {
	if err == nil {
		return found, false
	}
	n := look(err)
	n.any(func(n *node) bool {
		found, ok = n.err.(T) //nolint:errorlint // this walks the tree itself
		ok = ok && !IsNil(n.err)
		return ok
	})
	return found, ok
}

// Same reports whether a and b are the same error, kept or not. It returns
// false for errors that cannot be compared.
func Same(a, b error) (same bool) {
	defer func() { _ = recover() }()  // types that cannot be compared
	return original(a) == original(b) //nolint:errorlint // not what it wraps
}

func original(err error) error {
	if k, ok := err.(*kept); ok { //nolint:errorlint // err itself
		return k.err
	}
	return err
}

// sentinels are the targets for which a foreign Is method answers.
var sentinels atomic.Pointer[[]error]

func init() {
	Sentinels(context.Canceled, context.DeadlineExceeded, net.ErrClosed, os.ErrClosed, io.ErrClosedPipe, ErrGoexit)
}

// Sentinels adds targets for which the Is method of a foreign error answers to the library. A
// package calls it for those on which it decides, when it initialises its variables:
// var _ = call.Sentinels(ErrTerminate). It returns the number of all targets.
func Sentinels(errs ...error) int {
	for {
		old := sentinels.Load()
		var all []error
		if old != nil {
			all = slices.Clone(*old)
		}
		all = append(all, errs...)
		if sentinels.CompareAndSwap(old, &all) {
			return len(all)
		}
	}
}
