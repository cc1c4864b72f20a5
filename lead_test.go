package lifecycle_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestLeadTwoAppsNeverBothAndTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		run := func(id string) (*rig, *candidate, chan error) {
			r, c, over := newRig(t, leaderConfig()), &candidate{row: s.row, id: id}, make(chan error, 1)
			r.Lead("work", c, s.play(id, 3*time.Second))
			go func() { over <- r.Run(context.Background()) }()
			<-r.Reached(lifecycle.PhaseRunning)
			synctest.Wait()
			return r, c, over
		}
		a, _, overA := run("a")
		b, cb, overB := run("b")
		if code, body := get(b.Handler(), "/readyz"); code != http.StatusOK {
			t.Errorf("the App that does not lead is not ready: %d %s", code, body)
		}
		time.Sleep(time.Minute) // a renews its lease four times
		a.signals <- syscall.SIGTERM
		if err := <-overA; err != nil {
			t.Error(err)
		}
		// At 60 s a drains, at 65 s its context ends, and at 68 s it has returned.
		time.Sleep(3 * time.Second)
		c, _, overC := run("c")
		time.Sleep(20 * time.Second)
		// b loses its connection, so c has to wait until b's lease runs out.
		cb.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) { return 0, errBoom })
		time.Sleep(time.Minute)
		cb.goWrong(nil)
		time.Sleep(10 * time.Second)
		c.Stop(nil)
		if err := <-overC; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		b.Stop(nil)
		if err := <-overB; err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		var who []string
		for _, line := range s.trail {
			_, what, _ := strings.Cut(line, " ")
			who = append(who, what)
		}
		want := []string{"a leads", "a is cancelled: received signal: terminated", "b leads", "b is cancelled: leadership lost: it was not renewed in time: boom", "c leads", "c is cancelled: stop requested", "b leads", "b is cancelled: stop requested"}
		if !slices.Equal(who, want) {
			t.Errorf("happened:\n\t%s\nwant:\n\t%s", strings.Join(s.trail, "\n\t"), strings.Join(want, "\n\t"))
		}
	})
}

// leadAlone runs one App, and calls act while it runs.
func leadAlone(t *testing.T, acquire acquireFunc, leave time.Duration, act func(*rig, *candidate, *stage)) (*rig, *candidate, *stage, error) {
	t.Helper()
	s := newStage(t)
	r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a", acquire: acquire}
	r.Lead("work", c, s.play("a", leave))
	go act(r, c, s)
	err := r.Run(context.Background())
	synctest.Wait()
	return r, c, s, err
}

func TestLeadTrustsFromTheBeginningOfTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(_ context.Context, ask func() (time.Duration, error)) (time.Duration, error) {
			granted, err := ask() // the store grants the lease at once, and the answer takes 4 s
			time.Sleep(4 * time.Second)
			return granted, err
		}
		_, c, s, err := leadAlone(t, slow, 4*time.Second, func(r *rig, c *candidate, s *stage) {
			time.Sleep(4500 * time.Millisecond) // the function was elected at 4 s, and the renewal is due at 5 s
			c.goWrong(func(ctx context.Context, _ func() (time.Duration, error)) (time.Duration, error) {
				<-ctx.Done() // the store does not answer
				return 0, ctx.Err()
			})
			time.Sleep(10 * time.Second)
			r.Stop(nil)
		})
		if err != nil {
			t.Error(err)
		}
		// The lease lasts 15 s from 0 s on. The function is cancelled at 10 s
		// (not at 14 s) and returns at 14 s, within the lease.
		s.want("4s a leads", "14s a is cancelled: leadership lost: it was not renewed in time: context deadline exceeded")
		if asked, _ := c.counts(); asked < 3 {
			t.Errorf("the App asked %d times, want more attempts before it gives up", asked)
		}
	})
}

func TestLeadCampaignsAgainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, s, err := leadAlone(t, nil, 0, func(r *rig, c *candidate, s *stage) {
			time.Sleep(time.Second)
			other := 0
			c.goWrong(func(_ context.Context, ask func() (time.Duration, error)) (time.Duration, error) {
				if other++; other <= 2 {
					return 0, nil
				}
				return ask()
			})
			time.Sleep(29 * time.Second)
			st := r.Status().Units[0]
			if st.Restarts != 1 || len(st.Children) != 1 || st.Children[0].Status != worker.StatusRunning {
				t.Errorf("state in its second term: %+v", st)
			}
			r.Stop(nil)
		})
		if err != nil {
			t.Error(err)
		}
		if _, freed := c.counts(); freed != 1 {
			t.Errorf("released %d times, want once", freed)
		}
		if len(s.trail) != 4 || s.trail[1] != "5s a is cancelled: leadership lost: another process has the lease" || !strings.HasSuffix(s.trail[2], "a leads") {
			t.Errorf("happened:\n\t%s", strings.Join(s.trail, "\n\t"))
		}
	})
}

func TestLeadFunctionThatOutstaysItsLeaseStopsTheApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := newStage(t), make(chan struct{})
		r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a"}
		r.Lead("work", c, func(context.Context) error { <-release; return nil })
		r.after(time.Second, func() {
			c.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) { return 0, errBoom })
		})
		err := r.Run(context.Background())
		var abandoned *lifecycle.AbandonedError
		wantErr(t, err, nil, "unit work", "lease has run out and the function still runs", "TestLeadFunctionThatOutstaysItsLeaseStopsTheApp")
		if !errors.As(err, &abandoned) || abandoned.Stack == "" {
			t.Errorf("the stack of the function is not in %v", err)
		}
		if at := r.EnteredAt(lifecycle.PhaseDraining).Sub(r.began); at != ttl {
			t.Errorf("stopped after %v, want %v: the time of the lease", at, ttl)
		}
		if _, freed := c.counts(); freed != 0 {
			t.Error("the lease was released while the function runs")
		}
		close(release)
		synctest.Wait()
	})
}

func TestLeadAbandonedFunctionKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := newStage(t), make(chan struct{})
		r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a"}
		r.Lead("work", c, func(context.Context) error { <-release; return nil })
		r.after(time.Second, func() { r.Stop(nil) })
		wantErr(t, r.Run(context.Background()), nil, "work", "abandoned")
		if st := r.Status().Units[0]; st.Status != worker.StatusKilled {
			t.Errorf("status %s, want Killed", st.Status)
		}
		close(release)
		synctest.Wait()
		if _, freed := c.counts(); freed != 0 {
			t.Error("the lease was released while the function runs")
		}
	})
}

func TestLeadBeginsNoTermWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.row.holder, s.row.until = "other", time.Now().Add(3*time.Second)
		r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a"}
		r.Lead("work", c, s.play("a", 0))
		r.after(time.Second, func() { r.Stop(nil) })
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
		s.want()
		if _, freed := c.counts(); freed != 0 {
			t.Error("the App released a lease that it never had")
		}
	})
}

func TestLeadEndOfTheFunctionReleasesTheLease(t *testing.T) {
	for name, c := range map[string]struct {
		end  func() error
		want string
	}{
		"nil":      {func() error { return nil }, ""},
		"error":    {func() error { return errBoom }, "boom"},
		"panic":    {func() error { panic("ouch") }, "panic: ouch"},
		"the word": {func() error { return lifecycle.ErrLeadershipLost }, "leadership lost"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				r, cand := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a"}
				r.Lead("work", cand, func(context.Context) error { time.Sleep(time.Second); return c.end() })
				r.after(30*time.Second, func() { r.Stop(nil) })
				err := r.Run(context.Background())
				if c.want == "" {
					if err != nil || r.EnteredAt(lifecycle.PhaseDraining).Sub(r.began) != 30*time.Second {
						t.Errorf("the app did not go on: %v", err)
					}
				} else {
					wantErr(t, err, nil, "unit work", c.want)
				}
				if _, freed := cand.counts(); freed != 1 {
					t.Errorf("released %d times, want once", freed)
				}
			})
		})
	}
}

func TestLeadElectorThatHangsPanicsOrMiscounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r, c, s, err := leadAlone(t, nil, 0, func(r *rig, c *candidate, s *stage) {
			time.Sleep(time.Second)
			c.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) {
				<-release // ignores its context
				return 0, nil
			})
			time.Sleep(20 * time.Second)
			r.Stop(nil)
		})
		wantErr(t, err, nil, "work: elector", "abandoned")
		s.want("0s a leads", "10s a is cancelled: leadership lost: it was not renewed in time")
		close(release)
		synctest.Wait()
		if _, freed := c.counts(); freed != 1 {
			t.Errorf("released %d times, want once after the elector has returned", freed)
		}
		_ = r
	})
	synctest.Test(t, func(t *testing.T) {
		r, _, s, err := leadAlone(t, nil, 0, func(r *rig, c *candidate, s *stage) {
			time.Sleep(time.Second)
			c.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) { panic("ouch") })
			time.Sleep(20 * time.Second)
			c.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) { return 15, nil })
			time.Sleep(20 * time.Second)
			r.Stop(nil)
		})
		if err != nil {
			t.Error(err)
		}
		s.want("0s a leads", "10s a is cancelled: leadership lost: it was not renewed in time: work: Acquire: panic: ouch")
		if !strings.Contains(r.log.String(), "a lease of 15ns was granted, want 1s or more") {
			t.Errorf("the log says nothing of a lease of 15 ns:\n%s", r.log.String())
		}
	})
}

func TestLeadElectorThatHangsHidesNoEnd(t *testing.T) {
	t.Run("of a function that fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, release := newStage(t), make(chan struct{})
			r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a"}
			r.Lead("work", c, func(context.Context) error { time.Sleep(7 * time.Second); return errBoom })
			r.after(time.Second, func() { // the renewal at 5 s
				c.goWrong(func(context.Context, func() (time.Duration, error)) (time.Duration, error) {
					<-release // ignores its context
					return 0, nil
				})
			})
			wantErr(t, r.Run(t.Context()), errBoom, "unit work: boom", "work: elector", "abandoned")
			if at := r.EnteredAt(lifecycle.PhaseDraining).Sub(r.began); at > 10*time.Second {
				t.Errorf("the function failed at 7 s, and the App stops at %v", at)
			}
			if _, freed := c.counts(); freed != 0 {
				t.Error("the App asked the elector to release while it still asked it for the lease")
			}
			close(release)
			synctest.Wait()
		})
	})
	t.Run("of a function that is done", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a", hang: make(chan struct{})}
			r.Lead("work", c, func(context.Context) error { time.Sleep(time.Second); return nil })
			r.after(time.Minute, func() {
				if st := r.Status().Units[0].Status; st != worker.StatusFinished {
					t.Errorf("a minute later the unit is %s", st)
				}
				r.Stop(nil)
			})
			if err := r.Run(t.Context()); err != nil {
				t.Errorf("a lease that was not released stops the App: %v", err)
			}
			if !strings.Contains(r.log.String(), "has to run out") {
				t.Errorf("the log does not mention the elector:\n%s", r.log.String())
			}
			close(c.hang)
			synctest.Wait()
		})
	})
	t.Run("of a function that is stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			r, c := newRig(t, leaderConfig()), &candidate{row: s.row, id: "a", hang: make(chan struct{})}
			r.Lead("work", c, s.play("a", 0))
			r.after(time.Second, func() { r.Stop(nil) })
			wantErr(t, r.Run(t.Context()), nil, "unit work", "work: elector", "candidate", "Release")
			close(c.hang)
			synctest.Wait()
		})
	})
}

func TestLeadElectorThatIsNilIsRefused(t *testing.T) {
	for name, e := range map[string]lifecycle.Elector{"nil": nil, "a nil pointer": (*candidate)(nil)} {
		r := newRig(t, leaderConfig())
		r.Lead("work", e, untilCancelled)
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `unit "work": Lead: the elector is nil`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
