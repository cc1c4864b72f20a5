package host

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// maxDiscards is how many letters a call discards at one time.
const maxDiscards = 32

// discard removes letters with what is stored beside them, many at one time. It returns how
// many this call has removed, also with an error: then it begins no other, and waits for those
// that it has begun, whose outcome counts too.
func (l *letters) discard(ctx context.Context, chosen []*DeadLetter) (int, error) {
	var next, removed atomic.Int64
	var failed atomic.Bool
	errs := make([]error, min(maxDiscards, len(chosen)))
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(chosen)) && !failed.Load(); n = next.Add(1) - 1 {
				d := chosen[n]
				gone, err := l.remove(ctx, d.Seq)
				if gone {
					removed.Add(1)
				}
				if gone && d.body != "" {
					err = l.drop(ctx, l.body+d.body)
				}
				if err != nil {
					failed.Store(true)
					errs[i] = fmt.Errorf("%d: %w", d.Seq, err)
					return
				}
			}
		})
	}
	calls.Wait()
	for _, err := range errs { // one says enough
		if err != nil {
			return int(removed.Load()), err
		}
	}
	return int(removed.Load()), nil
}
