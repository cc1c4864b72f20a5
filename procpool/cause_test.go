//go:build unix

package procpool_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/procpool"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A pool whose program does not exist tells so to the query that waits in vain, and logs it
// to the logger of the App that runs the pool.
func TestAProgramThatDoesNotExist(t *testing.T) {
	var log lockedBuffer
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: "off", DrainInterval: lifecycle.Off},
		lifecycle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), lifecycle.WithSignals(nil))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := procpool.New(procpool.Config{
		Name:       "absent",
		Command:    func() *exec.Cmd { return exec.Command("/does/not/exist") },
		MaxWorkers: 1,
		MaxQueue:   2,
		BreakAfter: procpool.Off,
	})
	if err != nil {
		t.Fatal(err)
	}
	app.Add(pool).Go("asks", func(ctx context.Context) error {
		defer app.Stop(nil)
		first, err := pool.Submit(ctx, []byte("{}"))
		if err != nil {
			t.Error(err)
			return nil
		}
		defer first.Cancel(nil)
		for pool.Stats().Failures == 0 && ctx.Err() == nil { // until a start has failed
			time.Sleep(time.Millisecond)
		}
		_, err = pool.Do(ctx, []byte("{}"), procpool.Timeout(time.Millisecond))
		var late *procpool.DeadlineError
		if !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("want a DeadlineError: %v", err)
		}
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/does/not/exist") {
			t.Errorf("the error does not say why no worker came: %v", err)
		}
		return nil
	})
	if err := app.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "procpool: a worker has ended") {
		t.Errorf("the App's log has no line of the pool:\n%s", log.String())
	}
}
