package diagnosis

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Stamp returns a time that another program has said, nil for none. A Timestamp has the years 1 to 9999
// and JSON has no other: a time before or after them becomes the first or the last one, so
// that it spoils no answer.
func Stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	const first, last = -62135596800, 253402300799
	return timestamppb.New(time.Unix(min(max(t.Unix(), first), last), int64(t.Nanosecond())))
}

// maxDepth is how deep units may lie in each other. The paths of deeper ones would take
// time and memory with the square of their number.
const maxDepth = 32

// shallow returns units without those that lie too deep. cut says that there are some. It
// does not change list.
func shallow(list []worker.State, depth int) (out []worker.State, cut bool) {
	if depth == 0 {
		return nil, len(list) > 0
	}
	out = list
	for i := range list {
		children, below := shallow(list[i].Children, depth-1)
		if !below {
			continue
		}
		if !cut {
			out, cut = slices.Clone(list), true
		}
		out[i].Children = children
	}
	return out, cut
}
