//go:build !linux

package contain

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Bounds says whether this system can set limits of a process that runs.
const Bounds = false

// Group is the cgroup of a process, which this system does not have.
type Group struct{}

// New returns an error.
func New([]string, string, Limits) (*Group, []string, error) {
	return nil, nil, fmt.Errorf("only Linux has cgroups: %w", errors.ErrUnsupported)
}

// The methods do nothing, since there is no group.

func (g *Group) StartIn(*syscall.SysProcAttr) error        { return nil }
func (g *Group) Joins(*syscall.SysProcAttr) bool           { return false }
func (g *Group) Join(int, *syscall.SysProcAttr) error      { return nil }
func (g *Group) Forbidden(err error) error                 { return err }
func (g *Group) Empty() bool                               { return true }
func (g *Group) Signal(syscall.Signal, func(pid int) bool) {}
func (g *Group) Kill()                                     {}
func (g *Group) End(time.Duration) []int                   { return nil }
func (g *Group) Usage() Usage                              { return Usage{} }
func (g *Group) Dirs() []string                            { return nil }
func (g *Group) Remove() error                             { return nil }

// OOMKills counts nothing.
func OOMKills(string) (kills int, ok bool) { return 0, false }

// Files returns an error.
func Files(int, int) error { return errors.ErrUnsupported }

// Data returns an error.
func Data(int, int64) error { return errors.ErrUnsupported }
