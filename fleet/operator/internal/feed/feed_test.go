package feed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tap is a source that a test feeds.
type tap struct {
	runs int
	to   stream.Sink[int]
	fail chan error
}

func (s *tap) run(ctx context.Context, to stream.Sink[int]) error {
	s.runs++
	s.to = to
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fail:
		return err
	}
}

func open(t *testing.T) (*tap, *Feed[int]) {
	s := &tap{fail: make(chan error)}
	f := New(s.run, Options[int]{})
	t.Cleanup(f.Close)
	return s, f
}

func next(t *testing.T, r *Reader[int], limit int) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	items, err := r.Next(ctx, limit)
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, it := range items {
		text += map[stream.Kind]string{stream.Put: "+", stream.Deleted: "-", stream.Synced: "=", stream.Gap: "!"}[it.Kind] + it.Key
		if it.Kind == stream.Put {
			text += fmt.Sprint(it.Value)
		}
		text += " "
	}
	return text
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReaderSeesWhatIsThereThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Put("a", 1)
		s.to.Put("b", 2)
		want(t, next(t, r, 9), "+a1 +b2 ") // its first read returns the current values
		s.to.Sync()
		want(t, next(t, r, 9), "= ")
		s.to.Put("a", 3)
		s.to.Delete("b")
		s.to.Delete("never there")
		want(t, next(t, r, 9), "+a3 -b ")
		want(t, next(t, r, 9), context.DeadlineExceeded.Error())

		late := f.Read("", nil)
		want(t, next(t, late, 1), "+a3 ")
		want(t, next(t, late, 9), "= ")
		only := f.Read("b", nil)
		want(t, next(t, only, 9), "= ")
		s.to.Put("a", 4)
		s.to.Put("b", 5)
		want(t, next(t, only, 9), "+b5 ")
	})
}

// A reader gets the values that it sees, and their deletions. What it does not see is no
// sign of life.
func TestReaderGetsWhatItSees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", func(n int) bool { return n%2 == 0 })
		synctest.Wait()
		for i, key := range []string{"a", "b", "c"} {
			s.to.Put(key, i)
		}
		s.to.Sync()
		want(t, next(t, r, 9), "+a0 +c2 = ")
		s.to.Put("b", 3)
		s.to.Delete("b")
		want(t, next(t, r, 9), context.DeadlineExceeded.Error())
		s.to.Delete("c")
		want(t, next(t, r, 9), "-c ")
	})
}

// A value that a reader got before its sync may be deleted before its sync, too.
func TestDeletionDuringTheFirstReadIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		for i := range 3 {
			s.to.Put(fmt.Sprint("k", i), i)
		}
		s.to.Sync()
		want(t, next(t, r, 2), "+k00 +k11 ")
		s.to.Delete("k0")
		want(t, next(t, r, 9), "+k22 -k0 = ")
		late := f.Read("", nil)
		defer late.Close()
		want(t, next(t, late, 9), "+k11 +k22 = ") // the reader never got k0
		r.Close()
	})
}

// A reader may be so slow that the feed forgets deletions during its first read.
// Such a reader starts again, and so keeps no deleted values.
func TestFirstReadThatIsTooSlowForADeletionBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		defer r.Close()
		synctest.Wait()
		for i := range 3 {
			s.to.Put(fmt.Sprint("k", i), i)
		}
		s.to.Sync()
		want(t, next(t, r, 2), "+k00 +k11 ")
		s.to.Delete("k0")
		for i := range maxDeleted {
			s.to.Put(fmt.Sprint(i), i)
			s.to.Delete(fmt.Sprint(i))
		}
		want(t, next(t, r, 9), ErrSlow.Error())
	})
}

// A feed that was idle has forgotten deletions. Its next reader is not affected.
func TestReaderOfAnIdleFeedIsNotTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Sync()
		for i := range 3 * maxDeleted {
			s.to.Put(fmt.Sprint(i), i)
			s.to.Delete(fmt.Sprint(i))
		}
		r.Close()
		r = f.Read("", nil)
		synctest.Wait()
		s.to.Sync()
		want(t, next(t, r, 9), "= ")
		want(t, next(t, r, 9), context.DeadlineExceeded.Error())
	})
}

// When a source ends slowly, the feed waits for its end before it begins the next
// run.
func TestOneSourceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, most := 0, 0
		f := New(func(ctx context.Context, _ stream.Sink[int]) error {
			running++
			most = max(most, running)
			<-ctx.Done()
			time.Sleep(time.Hour)
			running--
			return ctx.Err()
		}, Options[int]{})
		f.Read("", nil).Close()
		f.Read("", nil)
		time.Sleep(time.Minute)
		f.Close()
		if most != 1 || running != 0 {
			t.Errorf("%d sources at once, and %d after Close", most, running)
		}
	})
}

func TestSlowReaderGetsTheLatestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Sync()
		want(t, next(t, r, 9), "= ")
		for i := range 100_000 {
			s.to.Put("a", i)
			s.to.Put(fmt.Sprint("k", i%10), i)
		}
		if f.order.Len() != 11 || len(f.latest) != 11 {
			t.Errorf("%d changes of %d keys are kept for 11 keys", f.order.Len(), len(f.latest))
		}
		got := next(t, r, 100)
		want(t, got, "+k099990 +k199991 +k299992 +k399993 +k499994 +k599995 +k699996 +k799997 +k899998 +a99999 +k999999 ")
	})
}

func TestDeletionsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Sync()
		want(t, next(t, r, 9), "= ")
		for i := range 200_000 { // with a reader that never reads
			s.to.Put(fmt.Sprint(i), i)
			s.to.Delete(fmt.Sprint(i))
		}
		if f.order.Len() > maxDeleted || len(f.latest) > maxDeleted || len(f.deleted) > maxDeleted {
			t.Errorf("%d changes of %d keys are kept without any value", f.order.Len(), len(f.latest))
		}
		want(t, next(t, r, 9), ErrSlow.Error())
		want(t, next(t, f.Read("", nil), 1_000_000), "= ")
	})
}

// After a gap the source sends everything again. Readers get only the
// differences: no gap and no second synced item.
func TestGapOfTheSourceIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Put("a", 1)
		s.to.Put("b", 2)
		s.to.Sync()
		want(t, next(t, r, 9), "+a1 +b2 = ")
		s.to.Gap()
		s.to.Put("a", 3)
		want(t, next(t, r, 9), "+a3 ")
		s.to.Sync()
		want(t, next(t, r, 9), "-b ")
		late := f.Read("", nil)
		want(t, next(t, late, 9), "+a3 = ")
	})
}

func TestSourceThatFailsBeginsAnewAndTheGapIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		var told error
		f.opts.Failed = func(err error) { told = err }
		r := f.Read("", nil)
		synctest.Wait()
		s.to.Put("a", 1)
		s.to.Put("b", 1)
		s.to.Sync()
		want(t, next(t, r, 9), "+a1 +b1 = ")
		s.fail <- errors.New("connection lost")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.runs != 2 || told == nil {
			t.Fatalf("the source ran %d times, the reported error is %v", s.runs, told)
		}
		s.to.Put("b", 2)
		s.to.Put("c", 1)
		s.to.Sync()
		want(t, next(t, r, 9), "+b2 +c1 -a ")
	})
}

func TestSourceStopsAfterItsLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := open(t)
		r, other := f.Read("", nil), f.Read("", nil)
		synctest.Wait()
		s.to.Put("a", 1)
		s.to.Sync()
		r.Close()
		r.Close()
		want(t, next(t, other, 9), "+a1 = ")
		other.Close()
		old := s.to
		synctest.Wait()
		old.Put("late", 1)
		last := f.Read("", nil)
		synctest.Wait()
		if s.runs != 2 {
			t.Errorf("the source ran %d times, want 2", s.runs)
		}
		s.to.Sync()
		want(t, next(t, last, 9), "= ")
		f.Close()
		want(t, next(t, last, 9), context.Canceled.Error())
		want(t, next(t, f.Read("", nil), 9), context.Canceled.Error())
	})
}

// A value that is not news is the latest one, and no reader gets it before the next news. It
// is not deleted by the sync after a gap.
func TestValuesThatAreNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tap{fail: make(chan error)}
		f := New(s.run, Options[int]{Always: true, Merge: func(_ string, old int, known bool, new int) (int, bool) {
			return new, !known || old/10 != new/10
		}})
		defer f.Close()
		synctest.Wait()
		s.to.Put("a", 1)
		s.to.Put("b", 2)
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if f.Synced(early) == nil {
			t.Error("it is synced before its source is")
		}
		s.to.Sync()
		r := f.Read("", nil)
		want(t, next(t, r, 9), "+a1 +b2 = ")
		s.to.Put("a", 9)
		want(t, next(t, r, 9), context.DeadlineExceeded.Error())
		late := f.Read("", nil)
		want(t, next(t, late, 9), "+a9 +b2 = ")
		s.to.Gap()
		s.to.Put("a", 8)
		s.to.Sync()
		want(t, next(t, r, 9), "-b ")
		s.to.Put("a", 10)
		want(t, next(t, r, 9), "+a10 ")
		values := map[string]int{}
		f.Each(func(key string, value int) { values[key] = value })
		if len(values) != 1 || values["a"] != 10 || f.Synced(t.Context()) != nil {
			t.Errorf("it has %v", values)
		}
		r.Close()
		late.Close()
		time.Sleep(time.Hour)
		if s.runs != 1 {
			t.Errorf("the source ran %d times", s.runs)
		}
	})
}

func TestReadersAreSmall(t *testing.T) {
	s := &tap{fail: make(chan error)}
	started := make(chan struct{})
	f := New(func(ctx context.Context, to stream.Sink[int]) error {
		s.to = to
		close(started)
		<-ctx.Done()
		return nil
	}, Options[int]{})
	defer f.Close()
	f.Read("", nil)
	<-started
	for i := range 10_000 {
		s.to.Put(fmt.Sprint(i), i)
	}
	s.to.Sync()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	readers := make([]*Reader[int], 1000)
	for i := range readers {
		readers[i] = f.Read("", nil)
	}
	for i := range 10_000 {
		s.to.Put(fmt.Sprint(i), -i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grew := int64(after.HeapAlloc) - int64(before.HeapAlloc); grew > 8<<20 {
		t.Errorf("1000 readers that never read hold %d bytes", grew)
	}
	runtime.KeepAlive(readers)
}
