package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

var errBoom = errors.New("boom")

// rig is an App for synctest bubbles. Its signals do not reach the process, a
// test can read its log, and its trail records what happened when.
type rig struct {
	*lifecycle.App
	t       *testing.T
	signals chan os.Signal
	log     *syncBuffer
	began   time.Time

	mu    sync.Mutex
	trail []string
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newRig(t *testing.T, cfg lifecycle.Config, opts ...lifecycle.Option) *rig {
	t.Helper()
	if cfg.HealthAddr == "" {
		cfg.HealthAddr = lifecycle.HealthOff
	}
	if cfg.TerminationLog == "" {
		cfg.TerminationLog = "off"
	}
	cfg.Name = "rig"
	r := &rig{t: t, signals: make(chan os.Signal, 8), log: &syncBuffer{}, began: time.Now()}
	app, err := lifecycle.New(cfg, append([]lifecycle.Option{
		lifecycle.WithSignals(r.signals),
		lifecycle.WithLogger(slog.New(slog.NewTextHandler(r.log, nil))),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	r.App = app
	return r
}

// mark notes that something happens now.
func (r *rig) mark(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trail = append(r.trail, fmt.Sprintf("%v %s", time.Since(r.began), fmt.Sprintf(format, args...)))
}

// after calls fn when d has passed.
func (r *rig) after(d time.Duration, fn func()) { time.AfterFunc(d, fn) }

// signalAfter delivers a signal when d has passed.
func (r *rig) signalAfter(d time.Duration, sig os.Signal) {
	r.after(d, func() { r.signals <- sig })
}

func (r *rig) wantTrail(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.trail, want) {
		r.t.Errorf("happened:\n\t%s\nwant:\n\t%s", strings.Join(r.trail, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// awaitWindowEnd returns when the App has ended the drain window in all its servers, or
// when ctx is done. The log line comes after the App has cancelled the streams.
func (r *rig) awaitWindowEnd(ctx context.Context) {
	for ctx.Err() == nil && !strings.Contains(r.log.String(), "the drain window is over") {
		time.Sleep(5 * time.Millisecond)
	}
}

// took returns how long the App was in a phase.
func (r *rig) took(p lifecycle.Phase) time.Duration {
	for _, pt := range r.Report().Phases {
		if pt.Phase == p {
			return pt.Duration
		}
	}
	r.t.Helper()
	r.t.Errorf("the App never was in phase %s", p)
	return -1
}

// untilCancelled is a unit that returns when its context ends.
func untilCancelled(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// wantErr checks the text of an error, and which errors it wraps.
func wantErr(t *testing.T, err error, is error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", says)
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v\nis not %v", err, is)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v\ndoes not say %q", err, s)
		}
	}
}

// get asks a handler for a path.
func get(h http.Handler, path string) (code int, body string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// fetch gets a URL on a connection of its own.
func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}

// pipeListener is a listener in memory, for servers in a bubble. A test can see
// when it is closed.
type pipeListener struct {
	*lifecycletest.Listener
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{Listener: lifecycletest.NewListener(), closed: make(chan struct{})}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// dial returns nil when the listener is closed.
func (l *pipeListener) dial() net.Conn {
	c, err := l.Dial(context.Background())
	if err != nil {
		return nil
	}
	return c
}

// request sends a request on a connection of its own and reads the whole answer.
func (l *pipeListener) request() error {
	c := l.dial()
	if c == nil {
		return net.ErrClosed
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	_, err := io.ReadAll(c)
	return err
}

// draining reports whether T0 has passed.
func draining(r *rig) bool {
	select {
	case <-r.Draining():
		return true
	default:
		return false
	}
}
