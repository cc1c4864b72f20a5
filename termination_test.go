package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// terminationFile returns the path of a file that exists, as in a container, and has an
// old text.
func terminationFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, []byte(strings.Repeat("old words ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTerminationLogIsRewrittenAtEachStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := terminationFile(t)
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		a := testApp(t, Config{TerminationLog: path, DrainWait: WaitAlways}, nil)
		expect := func(want string) {
			t.Helper()
			if got := read(t, path); got != want {
				t.Errorf("the termination log is %q, want %q", got, want)
			}
		}
		a.Go("slow", func(ctx context.Context) error {
			time.Sleep(time.Second)
			MarkStarted(ctx)
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}, WithStartCondition())
		a.OnShutdown("second", func(context.Context) error { time.Sleep(time.Second); return nil })
		a.OnShutdown("first", func(context.Context) error { time.Sleep(time.Second); return nil })
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		time.Sleep(time.Second / 2)
		expect("svc: starting; waiting for unit slow to start")
		time.Sleep(time.Second)
		expect("svc: running")
		boom := errors.New("boom")
		a.Stop(boom)
		time.Sleep(4 * time.Second)
		expect("svc: draining: App.Stop was called: boom; waiting for the drain window")
		time.Sleep(3 * time.Second / 2)
		expect("svc: stopping: App.Stop was called: boom; waiting for unit slow")
		time.Sleep(time.Second)
		expect("svc: stopping: App.Stop was called: boom; waiting for hook first")
		time.Sleep(time.Second)
		expect("svc: stopping: App.Stop was called: boom; waiting for hook second")
		if err := <-ended; !errors.Is(err, boom) {
			t.Error(err)
		}
		expect("svc: failed: App.Stop was called: boom (draining 5s, stopping 3s): boom")
		after, err := os.Stat(path)
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("the App replaced the file (%v)", err)
		}
	})
}

// When a process is killed while units stop, the log has the names of the units
// that still run, and no unit that has ended.
func TestTerminationLogNamesTheUnitsThatAreLeft(t *testing.T) {
	type unit struct {
		name  string
		takes time.Duration
	}
	prompt, slow, slower := unit{"prompt", 0}, unit{"slow", time.Second}, unit{"slower", 2 * time.Second}
	const stopping = "svc: stopping: App.Stop was called; waiting for "
	for name, tt := range map[string]struct {
		units []unit
		want  []string // after half a second, and after one and a half
	}{
		"the slowest last":  {[]unit{prompt, slow, slower}, []string{stopping + "unit slow, unit slower", stopping + "unit slower"}},
		"the slowest first": {[]unit{slower, slow, prompt}, []string{stopping + "unit slower, unit slow", stopping + "unit slower"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := terminationFile(t)
				a := testApp(t, Config{TerminationLog: path, DrainInterval: Off}, nil)
				for _, u := range tt.units {
					a.Go(u.name, func(ctx context.Context) error {
						<-ctx.Done()
						time.Sleep(u.takes)
						return nil
					})
				}
				ended := make(chan error)
				go func() { ended <- a.Run(context.Background()) }()
				synctest.Wait()
				a.Stop(nil)
				for _, want := range tt.want {
					time.Sleep(time.Second / 2)
					synctest.Wait()
					if got := read(t, path); got != want {
						t.Errorf("the termination log is %q, want %q", got, want)
					}
					time.Sleep(time.Second / 2)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if got, want := read(t, path), "svc: stopped: App.Stop was called (draining 0s, stopping 2s)"; got != want {
					t.Errorf("the termination log is %q, want %q", got, want)
				}
			})
		})
	}
}

// When a start hangs, the kubelet often stops the process because of it.
func TestTerminationLogNamesWhatTheStartWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := terminationFile(t)
		a := testApp(t, Config{TerminationLog: path}, nil)
		a.Go("slow", func(ctx context.Context) error { <-ctx.Done(); return nil }, WithStartCondition())
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		time.Sleep(3 * time.Second)
		a.Stop(nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := "svc: stopped: App.Stop was called (while starting, waiting for unit slow to start) (starting 3s, stopping 0s)"
		if got := read(t, path); got != want {
			t.Errorf("the termination log is %q, want %q", got, want)
		}
	})
}

// stopped runs an App from start to end with a termination log and a cause.
func stopped(t *testing.T, path string, cause error) {
	t.Helper()
	a := testApp(t, Config{TerminationLog: path, DrainInterval: Off}, nil)
	a.Stop(cause)
	if err := a.Run(context.Background()); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestTerminationLogIsShortAndValid(t *testing.T) {
	for name, cause := range map[string]string{
		"long":                   strings.Repeat("long ", 1000),
		"long, of wide runes":    strings.Repeat("ü語😀", 1000),
		"not valid":              "a\xffb" + strings.Repeat("\xf0\x9f", 10),
		"not valid, and long":    strings.Repeat("語\xff", 1000),
		"not valid at the front": "\x80\x80\x80 then",
		"just too long by one":   strings.Repeat("x", 1024-len("svc: stopped: App.Stop was called: ")+1),
	} {
		t.Run(name, func(t *testing.T) {
			path := terminationFile(t)
			stopped(t, path, errors.New(cause))
			got := read(t, path)
			if len(got) > 1024 || !utf8.ValidString(got) || !strings.HasPrefix(got, "svc: failed: App.Stop was called: ") {
				t.Errorf("%d bytes, valid %v: %q", len(got), utf8.ValidString(got), got)
			}
			if len(cause) > 1024 && (len(got) < 1018 || !strings.HasSuffix(got, "…")) {
				t.Errorf("%d bytes of a long message: %q", len(got), got)
			}
		})
	}
}

func TestTerminationLogIsNeverCreated(t *testing.T) {
	dir := t.TempDir()
	stopped(t, filepath.Join(dir, "none"), errors.New("boom"))
	stopped(t, filepath.Join(dir, "none", "below"), errors.New("boom"))
	stopped(t, dir, errors.New("boom"))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v (%v)", left, err)
	}

	// The App does not create the file again after it was removed.
	file := filepath.Join(dir, "log")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := testApp(t, Config{DrainInterval: Off, TerminationLog: file}, nil)
	a.Go("u", func(ctx context.Context) error {
		<-a.Reached(PhaseRunning)
		err := os.Remove(file)
		a.Stop(nil)
		return err
	})
	if err := a.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the App created the file again (%v)", err)
	}
}

func FuzzClipWords(f *testing.F) {
	f.Add("short")
	f.Add(strings.Repeat("語", 400))
	f.Add(strings.Repeat("x", 1019) + "語")
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := text.Clip(s, 1024)
		if len(got) > 1024 || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
		}
		if utf8.ValidString(s) && len(s) <= 1024 && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}
