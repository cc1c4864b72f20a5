// Package contain gives a process a cgroup of its own (cgroups(7)), which holds
// the processes that it starts too, wherever they go: a process cannot leave its
// cgroup by a new session or group, nor by the death of its parent. A cgroup
// bounds memory, processes and processor time, reports what they use, and can be
// killed as a whole.
//
// A [Group] has a directory below each directory that the caller names. One is
// enough for cgroup v2. In v1 each controller has a hierarchy of its own, and the
// caller names a directory in each hierarchy to use. The two may be mixed, as they
// are on a hybrid machine. The named directories must have been delegated to this
// process: it may make directories in them. Package contain changes nothing outside
// of them and moves no process but the one that it is given.
//
// On other systems than Linux, [New] returns an error that is
// [errors.ErrUnsupported].
package contain

import (
	"net/url"
	"time"
)

// Limits bounds all processes of a group together. Zero limits nothing.
type Limits struct {
	Memory int64   // bytes, swap included where the kernel counts it
	PIDs   int     // processes and threads
	CPU    float64 // processors: 0.5 is half of the time of one
}

// period is the time over which the kernel counts processor time, in
// microseconds.
const period = 100_000

// MinCPU is the smallest limit of processor time that the kernel takes: one
// millisecond of each period.
const MinCPU = 1000.0 / period

// Usage is what all processes of a group use together, and what its limits have
// done. A value that the group's controllers do not report is 0.
type Usage struct {
	Memory     int64         // bytes
	MemoryPeak int64         // the most bytes until now
	PIDs       int           // processes and threads
	CPU        time.Duration // processor time until now
	Throttled  time.Duration // the time that they had to wait because of the limit of processor time
	Refused    int           // processes and threads that could not begin because of the limit
	OOMKills   int           // processes that the kernel has killed because memory ran out
}

// prefix begins the name of every directory of a group.
const prefix = "lifecycle-"

// pattern returns a pattern for os.MkdirTemp of a directory's name. It shows
// people which worker the directory belongs to.
func pattern(worker string) string {
	name := url.PathEscape(worker)
	return prefix + name[:min(len(name), 100)] + ".*"
}
