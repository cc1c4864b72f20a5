package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A function whose context has ended is Stopping for everyone who looks or waits, even
// while it does not return.
func TestEndOfTheContextIsSeen(t *testing.T) {
	looks := map[string]struct {
		before, after func(t *testing.T, w *worker.Func)
	}{
		"Status": {nil, func(t *testing.T, w *worker.Func) {
			if s := w.Status(); s != worker.StatusStopping {
				t.Errorf("it is %s", s)
			}
		}},
		"State": {nil, func(t *testing.T, w *worker.Func) {
			if s := w.State(); s.Status != worker.StatusStopping || !w.StopRequested() {
				t.Errorf("it is %+v", s)
			}
		}},
		"Await": {nil, func(t *testing.T, w *worker.Func) {
			if s, err := w.Await(t.Context(), func(s worker.Status) bool { return s == worker.StatusStopping }); err != nil || s != worker.StatusStopping {
				t.Errorf("it is %s, %v", s, err)
			}
		}},
		"Await before": {func(t *testing.T, w *worker.Func) {
			go func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
				defer cancel()
				if _, err := w.Await(ctx, func(s worker.Status) bool { return s == worker.StatusStopping }); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}, func(*testing.T, *worker.Func) {}},
		"events": {nil, nil},
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				w := worker.NewFunc("w", func(ctx context.Context) error { <-release; return ctx.Err() })
				ctx, cancel := context.WithCancelCause(t.Context())
				if err := w.Start(ctx); err != nil {
					t.Fatal(err)
				}
				if look.before != nil {
					look.before(t, w)
				}
				if look.after == nil {
					sub := w.Watch(8)
					defer sub.Close()
					cancel(errBoom)
					synctest.Wait()
					if e, err := sub.Next(t.Context()); err != nil || e.To != string(worker.StatusStopping) || !errors.Is(e.Cause, errBoom) {
						t.Errorf("got %+v, %v", e, err)
					}
				} else {
					cancel(errBoom)
					synctest.Wait()
					look.after(t, w)
				}
				time.Sleep(time.Hour)
				close(release)
				<-w.Done()
				if w.Status() != worker.StatusStopped {
					t.Errorf("in the end it is %s, %v", w.Status(), w.Err())
				}
			})
		})
	}
}
