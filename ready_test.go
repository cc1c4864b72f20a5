package lifecycle_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/health"
)

// A reason is not an error. Run returns nil, and the reason is in the report, the
// Status, the log and the termination log.
func TestStopBecauseIsACleanStopWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		words := filepath.Join(t.TempDir(), "termination-log")
		if err := os.WriteFile(words, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, lifecycle.Config{TerminationLog: words, ExitOnSignal: true})
		r.Go("unit", func(ctx context.Context) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, lifecycle.ErrStopRequested) {
				t.Errorf("the unit sees %v, want ErrStopRequested", cause)
			}
			return ctx.Err()
		})
		const reason = "drain: new node (asked by ada)"
		r.after(time.Second, func() {
			r.StopBecause(reason)
			r.StopBecause("a later reason")
			synctest.Wait()
			if got := r.Status().Report.Reason; got != reason {
				t.Errorf("while the App drains, Status says %q", got)
			}
		})
		if err := r.Run(t.Context()); err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
		if rep := r.Report(); rep.Reason != reason || rep.Error != "" || rep.Phase != lifecycle.PhaseStopped {
			t.Errorf("the report says %q, %q, %s", rep.Reason, rep.Error, rep.Phase)
		}
		said, err := os.ReadFile(words)
		if err != nil || !strings.Contains(string(said), "stopped: "+reason) {
			t.Errorf("the termination log says %q, %v", said, err)
		}
		if !strings.Contains(r.log.String(), `msg=stopping reason="`+reason+`"`) {
			t.Errorf("the log does not say why:\n%s", r.log)
		}
	})
}

func TestStopBecauseKeepsOneLineOfBoundedText(t *testing.T) {
	for given, want := range map[string]string{
		"":                       "App.Stop was called",
		"a\nb":                   "a b",
		"\xff":                   "\uFFFD",
		strings.Repeat("x", 300): strings.Repeat("x", 253) + "…",
	} {
		r := newRig(t, lifecycle.Config{})
		r.StopBecause(given) // before Run, which then stops as soon as it begins
		if err := r.Run(t.Context()); err != nil || r.Report().Reason != want {
			t.Errorf("%.10q: Run returned %v, the reason is %q, want %q", given, err, r.Report().Reason, want)
		}
	}
}

func TestSuspendedTellsWhySinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		want := func(reason string, since time.Duration) {
			t.Helper()
			s, suspended := r.Suspended()
			if !suspended || s.Reason != reason || s.Since.Sub(r.began) != since {
				t.Errorf("suspended %v, %+v; want %q since %v", suspended, s, reason, since)
			}
			if st := r.Status().Suspended; st != s {
				t.Errorf("Status says %+v", st)
			}
		}
		wantNot := func() {
			t.Helper()
			if s, suspended := r.Suspended(); suspended || s != (lifecycle.Suspension{}) || r.Status().Suspended != s {
				t.Errorf("suspended %v, %+v; want neither", suspended, s)
			}
		}
		wantNot()
		r.Suspend("") // before Run
		want("", 0)
		r.Resume()
		r.after(time.Second, func() {
			wantNot()
			r.Suspend("disk")
			time.Sleep(time.Second)
			r.Suspend("disk and memory") // the same suspension
			want("disk and memory", time.Second)
			if code, _ := call(t.Context(), r.Handler(), http.MethodPost, "/admin/resume"); code != http.StatusOK {
				t.Errorf("resume is answered with %d", code)
			}
			wantNot()
			if code, _ := call(t.Context(), r.Handler(), http.MethodPost, "/admin/suspend?reason=by+ada"); code != http.StatusOK {
				t.Errorf("suspend is answered with %d", code)
			}
			want("by ada", 2*time.Second)
			r.Resume()
			wantNot()
			r.Stop(nil)
		})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Ready and /readyz never disagree, and Ready says why it is not.
func TestReadyIsWhatReadyzSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		db := errors.New("connection refused")
		var down bool
		r.Probe("db", lifecycle.ProbeFunc(func(context.Context) error {
			if down {
				return db
			}
			return nil
		}))
		r.Probe("cache", lifecycle.ProbeFunc(func(context.Context) error { return errors.New("cold") }), health.WithNonCritical())
		want := func(says string) {
			t.Helper()
			code, _ := get(r.Handler(), "/readyz") // runs the checks
			err := r.Ready()
			if (err == nil) != (code == http.StatusOK) || err == nil && says != "" || err != nil && err.Error() != says {
				t.Errorf("/readyz is %d and Ready says %v, want %q", code, err, says)
			}
		}
		r.Go("slow", func(ctx context.Context) error {
			time.Sleep(time.Second)
			want("lifecycle: starting: waiting for unit slow to start")
			lifecycle.MarkStarted(ctx)
			<-r.Reached(lifecycle.PhaseRunning)
			want("")
			down = true
			want("db: connection refused")
			r.Suspend("new disk")
			want("db: connection refused\nlifecycle: suspended: new disk")
			down = false
			want("lifecycle: suspended: new disk")
			r.Resume()
			want("")
			r.StopBecause("enough")
			synctest.Wait()
			want("lifecycle: draining")
			<-ctx.Done()
			return ctx.Err()
		}, lifecycle.WithStartCondition())
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		want("lifecycle: draining")
	})
}

func TestReadyOnlyWhenEveryStartConditionIsMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		h := r.Registry().Handler()
		r.Go("cache", func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			lifecycle.MarkStarted(ctx)
			return untilCancelled(ctx)
		}, lifecycle.WithStartCondition())
		var up atomic.Bool
		r.Probe("db", lifecycle.ProbeFunc(func(context.Context) error {
			if !up.Load() {
				return errBoom
			}
			return nil
		}))
		r.after(time.Second, func() {
			for _, plane := range []string{"/readyz", "/startupz"} {
				if code, body := get(h, plane); code != 503 || !strings.Contains(body, "waiting for unit cache") {
					t.Errorf("%s at 1s: %d %s", plane, code, body)
				}
			}
			if code, _ := get(h, "/livez"); code != 200 {
				t.Errorf("/livez at 1s: %d", code)
			}
		})
		r.after(3*time.Second, func() {
			if code, body := get(h, "/readyz"); code != 503 || !strings.Contains(body, "boom") {
				t.Errorf("/readyz at 3s: %d %s", code, body)
			}
			if code, body := get(h, "/startupz"); code != 200 {
				t.Errorf("/startupz at 3s: %d %s", code, body)
			}
			up.Store(true)
		})
		r.after(4*time.Second, func() {
			if code, body := get(h, "/readyz"); code != 200 {
				t.Errorf("/readyz at 4s: %d %s", code, body)
			}
			r.Stop(nil)
			if code, body := get(h, "/readyz"); code != 503 || !strings.Contains(body, "draining") {
				t.Errorf("/readyz at T0: %d %s", code, body)
			}
			if code, _ := get(h, "/startupz"); code != 200 {
				t.Error("/startupz went down again")
			}
		})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestDrainReadinessServingStaysUpThroughTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 5 * time.Second, DrainReadiness: lifecycle.ReadinessServing, DrainWait: lifecycle.WaitAlways})
		h := r.Registry().Handler()
		wedged := lifecycle.ProbeFunc(func(context.Context) error { return errors.New("wedged") })
		_ = r.Registry().RegisterLiveness("self", wedged)
		r.Go("u", untilCancelled)
		r.after(time.Second, func() {
			if code, _ := get(h, "/livez"); code != 503 {
				t.Error("/livez passes before T0 with a check that fails")
			}
			r.Stop(nil)
			if code, body := get(h, "/readyz"); code != 200 {
				t.Errorf("/readyz at T0: %d %s", code, body)
			}
			if code, body := get(h, "/livez"); code != 200 {
				t.Errorf("/livez at T0: %d %s", code, body)
			}
		})
		r.OnShutdown("h", func(context.Context) error {
			if code, _ := get(h, "/readyz"); code != 503 {
				t.Errorf("/readyz after the listeners closed: %d", code)
			}
			if code, _ := get(h, "/livez"); code != 200 {
				t.Errorf("/livez in the shutdown: %d", code)
			}
			return nil
		})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
