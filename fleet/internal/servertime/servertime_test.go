package servertime_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/internal/servertime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestClock checks that the clock follows the server's, asks again only after a time,
// and goes on when the server does not answer.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c servertime.Clock
		asked, ahead, fault := 0, time.Hour, error(nil)
		look := func() error {
			return c.Look(t.Context(), 5*time.Second, func(context.Context) (time.Time, error) {
				asked++
				return time.Now().Add(ahead), fault
			})
		}
		is := func(want time.Duration) {
			t.Helper()
			if got := time.Until(c.Now()); got != want {
				t.Errorf("the clock is %v ahead, want %v", got, want)
			}
		}
		is(0)
		if err := look(); err != nil {
			t.Fatal(err)
		}
		is(time.Hour)
		ahead = 2 * time.Hour
		time.Sleep(4 * time.Second)
		if err := look(); err != nil || asked != 1 {
			t.Errorf("asked %d times, %v", asked, err)
		}
		is(time.Hour)
		time.Sleep(2 * time.Second)
		if err := look(); err != nil || asked != 2 {
			t.Errorf("asked %d times, %v", asked, err)
		}
		is(2 * time.Hour)
		fault = errors.New("away")
		time.Sleep(time.Minute)
		if err := look(); !errors.Is(err, fault) {
			t.Errorf("the error is %v", err)
		}
		is(2 * time.Hour)
	})
}
