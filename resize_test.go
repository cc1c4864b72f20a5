package lifecycle

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A function of OnResize is told what the process has when the App runs, and again after each
// change, also when it has failed or hung before, and not once the App drains.
func TestResizeIsTold(t *testing.T) {
	at := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(at)
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		a := testApp(t, Config{DrainInterval: 30 * time.Second, ReloadTimeout: time.Second}, signals)
		var mu sync.Mutex // guards told
		var told []int
		open := make(chan struct{})
		a.OnResize("pool", func(_ context.Context, r Resources) error {
			mu.Lock()
			told = append(told, r.CPUs)
			mu.Unlock()
			if a.Phase() != PhaseRunning || r.Memory < 0 {
				t.Errorf("told %+v while it is %s", r, a.Phase())
			}
			switch len(told) {
			case 2:
				return errors.New("no room")
			case 3:
				<-open
			}
			return nil
		})
		var wants []int
		check := func(when string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, wants) {
				t.Errorf("%s it was told %d, want %d", when, told, wants)
			}
		}
		ended := make(chan error)
		runtime.GOMAXPROCS(2) // before Run looks
		go func() { ended <- a.Run(context.Background()) }()
		for i := range 5 {
			runtime.GOMAXPROCS(2 + i)
			time.Sleep(25 * time.Second)
			if i == 3 {
				close(open)
			}
			if i != 3 { // then it still hangs, and is skipped
				wants = append(wants, 2+i)
			}
			check("running")
		}
		counts := a.Report().ReloadCounts["pool"]
		if counts[ResultOK] != 2 || counts[ResultFailed] != 1 || counts[ResultAbandoned] != 1 || counts[ResultSkipped] != 1 {
			t.Errorf("counted %v", counts)
		}
		signals <- syscall.SIGTERM
		runtime.GOMAXPROCS(2)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		check("after the drain")
	})
}

func TestResizeIsRefused(t *testing.T) {
	a := testApp(t, Config{}, nil)
	none := func(context.Context, Resources) error { return nil }
	a.OnResize("it", nil).OnResize("", none).OnReload("cache", func(context.Context) error { return nil }).OnResize("cache", none)
	err := a.Run(t.Context())
	for _, want := range []string{`"it"`, "no name", `"cache" is registered twice`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}
