package config

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// For every way to change a file, the change is taken over once.
func TestWatchSeesEveryWayToChangeAFile(t *testing.T) {
	const before, after = "poll: 1s\n", "poll: 2s\n" // of equal length
	for name, swap := range map[string]func(t *testing.T, path string){
		"written over":  func(t *testing.T, path string) { overwrite(t, path, after) },
		"the same time": func(t *testing.T, path string) { keepTime(t, path, func() { overwrite(t, path, after) }) },
		"renamed over":  func(t *testing.T, path string) { overwrite(t, path+"~", after); mustRename(t, path+"~", path) },
		"removed, made": func(t *testing.T, path string) { _ = os.Remove(path); pass(); overwrite(t, path, after) },
		"truncated, then": func(t *testing.T, path string) {
			overwrite(t, path, "")
			time.Sleep(watchEvery + settled/2)
			overwrite(t, path, after)
		},
		"byte by byte": func(t *testing.T, path string) {
			slow := "# " + strings.Repeat("a line of words that takes longer than many looks ", 2) + "\n" + after
			for i := range slow {
				overwrite(t, path, slow[:i+1])
				time.Sleep(settled - time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := write(t, "service.yaml", before)
				live, log := openLive(t, path)
				reloads, errs := watch(t, live)
				pass()
				if *reloads != 0 {
					t.Errorf("%d reloads of an unchanged file", *reloads)
				}
				swap(t, path)
				pass()
				if got := live.Get().Poll; got != 2*time.Second {
					t.Errorf("poll is %v, want 2s", got)
				}
				if *reloads != 1 || (*errs)[0] != nil {
					t.Errorf("%d reloads, %v, want one that is fine", *reloads, *errs)
				}
				if n := strings.Count(log.String(), `changes="poll: 1s -> 2s"`); n != 1 {
					t.Errorf("the change is logged %d times, want once:\n%s", n, log)
				}
			})
		})
	}
}

// firstHalf is the beginning of entire, and a valid configuration.
const (
	entire    = "poll: 2s\nworkers: 9\nlifecycle:\n  drain_interval: 30s\n  health_addr: 'off'\n"
	firstHalf = "poll: 2s\n"
)

// While a writer pauses in the middle of a file, the other half does not get its defaults.
func TestHalfAFileIsNotTakenForAWholeOne(t *testing.T) {
	for name, pause := range map[string]time.Duration{"a moment": settled / 2, "longer than a file has to be the same": 4 * settled, "nearly for ever": settledShorter - watchEvery - settled} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := write(t, "service.yaml", entire)
				live, log := openLive(t, path)
				reloads, _ := watch(t, live)
				live.OnChange(func(_, next service) {
					if next.Workers != 9 {
						t.Errorf("it was taken over with %d workers", next.Workers)
					}
				})
				pass()
				overwrite(t, path, firstHalf)
				time.Sleep(watchEvery + pause) // Watch has seen it by now
				overwrite(t, path, entire+"debug: true\n")
				pass()
				if got := live.Get(); *reloads != 1 || !got.Debug || got.Lifecycle.DrainInterval != 30*time.Second {
					t.Errorf("after %d reloads it is %+v", *reloads, got)
				}
				if strings.Contains(log.String(), "WARN") {
					t.Errorf("there is nothing to warn of:\n%s", log)
				}
			})
		})
	}
}

// A file that stays shorter is taken over, and the log names the missing keys.
func TestKeysThatAreGoneAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", entire+"debug: true\nratio: 0\n")
		live, log := openLive(t, path, "SERVICE_WORKERS=9")
		watch(t, live)
		pass()
		overwrite(t, path, firstHalf)
		time.Sleep(watchEvery + settledShorter - settled)
		synctest.Wait()
		if !live.Get().Debug {
			t.Error("it was read before it had been shorter for long enough")
		}
		pass()
		if got := live.Get(); got.Debug || got.Lifecycle.DrainInterval != 0 || got.Workers != 9 {
			t.Errorf("it is %+v", got)
		}
		// Not workers, which the environment sets, and not ratio, which has not changed.
		for _, want := range []string{`level=WARN msg="config: these keys are no longer given and have their defaults"`,
			`keys="debug, lifecycle.health_addr, lifecycle.drain_interval"`, "lifecycle.drain_interval: 30s -> its default"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %s:\n%s", want, log)
			}
		}
		overwrite(t, path, entire)
		pass()
		if n := strings.Count(log.String(), "no longer given"); n != 1 || live.Get().Lifecycle.DrainInterval != 30*time.Second {
			t.Errorf("logged %d times, want once:\n%s", n, log)
		}
	})
}

func TestFileThatIsGoneChangesNothingAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := write(t, "service.yaml", "poll: 1s\n")
		live, log := openLive(t, path)
		reloads, _ := watch(t, live)
		_ = os.Remove(path)
		pass()
		overwrite(t, path, "poll: 1s\n") // the old content
		pass()
		if *reloads != 0 || live.Get().Poll != time.Second {
			t.Errorf("%d reloads, poll %v", *reloads, live.Get().Poll)
		}
		if n := strings.Count(log.String(), "the file is missing"); n != 1 {
			t.Errorf("logged %d times, want once:\n%s", n, log)
		}
	})
}

// Of several files each is watched. One that comes later is read, and while one is missing the last
// configuration stays.
func TestEachFileIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := write(t, "service.yaml", "poll: 1s\nworkers: 5\n")
		site := filepath.Join(filepath.Dir(base), "site.yaml")
		log := &logBuffer{}
		live, err := Open[service](base+string(filepath.ListSeparator)+site, WithEnviron(nil), WithArgs(nil), WithOptionalFile(),
			WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		reloads, _ := watch(t, live)
		pass()
		for i, step := range []struct {
			change  func()
			workers uint8
			poll    time.Duration
			reloads int
		}{
			{func() {}, 5, time.Second, 0},
			{func() { overwrite(t, site, "workers: 6\n") }, 6, time.Second, 1},
			{func() { overwrite(t, base, "poll: 2s\nworkers: 5\n") }, 6, 2 * time.Second, 2},
			{func() { mustRename(t, site, site+"~") }, 6, 2 * time.Second, 2},
			{func() { mustRename(t, site+"~", site) }, 6, 2 * time.Second, 2},
			{func() { overwrite(t, site, "workers: 7\n") }, 7, 2 * time.Second, 3},
		} {
			step.change()
			pass()
			if got := live.Get(); got.Workers != step.workers || got.Poll != step.poll || *reloads != step.reloads {
				t.Errorf("step %d: %d workers, poll %v after %d reloads, want %+v", i, got.Workers, got.Poll, *reloads, step)
			}
		}
		if n := strings.Count(log.String(), "the file is missing"); n != 1 || !strings.Contains(log.String(), "file="+site) {
			t.Errorf("the log names the missing file %d times:\n%s", n, log)
		}
	})
}

// When the program has given the content, Watch reads no file of that name.
func TestWatchOfAGivenContent(t *testing.T) {
	name := filepath.Join(t.TempDir(), "svc.yaml")
	if err := os.WriteFile(name, []byte("addr: another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type settings struct{ Addr string }
	live, err := Open[settings](name, WithContent([]byte("addr: given\n")), WithArgs(nil), WithEnviron(nil), WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		reloads := 0
		err := live.Watch(ctx, func(context.Context) error { reloads++; return nil })
		if err != nil || reloads != 0 {
			t.Errorf("Watch returned %v after %d reloads", err, reloads)
		}
	})
}
