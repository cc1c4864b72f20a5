//go:build unix

package procpool_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// of is the metadata of one tenant.
func of(tenant string) procpool.Option {
	return procpool.Metadata(map[string]string{"tenant": tenant})
}

var nextOne = ask{Op: "next"}.raw()

// TestSessionDoesNotLeaveItsLiveWorker has one session die of the payload that another one
// sends.
func TestSessionDoesNotLeaveItsLiveWorker(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { strict(c) })
	bob := procpool.Key("bob")
	for i := range 102 {
		if got := do(t, p, nextOne, bob); got != strconv.Itoa(i+1) {
			t.Errorf("before: %s", got)
		}
	}
	for range 3 {
		if _, err := p.Do(within(t), nextOne, procpool.Key("mallory"), procpool.Idempotent(), of("mallory")); !errors.Is(err, procpool.ErrSessionLost) {
			t.Errorf("the poison: %v", err)
		}
	}
	if got := do(t, p, nextOne, bob); got != "103" {
		t.Errorf("the session goes on with %s, want 103", got)
	}
	if got := do(t, p, nextOne, bob, procpool.Idempotent()); got != "104" {
		t.Errorf("the session goes on with %s, want 104", got)
	}
}

// TestLostSessionIsToldOnce kills the idle worker of a session.
func TestLostSessionIsToldOnce(t *testing.T) {
	p := start(t, "serve", nil)
	bob := procpool.Key("bob")
	die := func() {
		do(t, p, nextOne, bob)
		pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw(), bob))
		if err != nil {
			t.Fatal(err)
		}
		kill(t, pid)
		eventually(t, "it is gone", func() bool { return !alive(pid) && p.Stats().Ready == 0 })
	}
	die()
	q := submit(t, p, nextOne, bob, procpool.Idempotent())
	var lost *procpool.SessionLostError
	if _, err := q.Result(); !errors.As(err, &lost) || lost.Key != "bob" || lost.Err != nil || !errors.Is(err, procpool.ErrSessionLost) {
		t.Errorf("the first query after the death: %s, %v", q.State(), err)
	}
	if got := do(t, p, nextOne, bob); got != "1" {
		t.Errorf("the next one: %s", got)
	}
	die()
	do(t, p, nextOne, procpool.Key("carol"))
	if got := do(t, p, nextOne, bob, procpool.BeginAnew()); got != "2" { // the new worker has answered carol
		t.Errorf("one that may begin anew: %s", got)
	}
	if got := do(t, p, nextOne, bob); got != "3" {
		t.Errorf("the one after it: %s", got)
	}
}

// TestSessionThatHasBegunAnewIsNotLost has a query wait for the worker of its key while that
// dies. It begins the session anew, and the next query goes on with it.
func TestSessionThatHasBegunAnewIsNotLost(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue = 1 })
	bob := procpool.Key("bob")
	pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw(), bob))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := waits(t, p)
	second := submit(t, p, nextOne, bob, procpool.BeginAnew())
	kill(t, pid)
	if _, err := first.Result(); !errors.As(err, new(*procpool.CrashError)) {
		t.Errorf("the query of the dead worker: %v", err)
	}
	if got, err := second.Result(); err != nil || string(got) != "1" {
		t.Errorf("the one that begins anew: %s, %v", got, err)
	}
	if got := do(t, p, nextOne, bob); got != "2" {
		t.Errorf("the next one: %s", got)
	}
}

// TestLossThatARejectedQueryDidNotHearIsTold has a query that might begin the session anew, and
// for which the pool has no room.
func TestLossThatARejectedQueryDidNotHearIsTold(t *testing.T) {
	p := start(t, "serve", nil)
	bob := procpool.Key("bob")
	pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw(), bob))
	if err != nil {
		t.Fatal(err)
	}
	kill(t, pid)
	eventually(t, "it is gone", func() bool { return !alive(pid) && p.Stats().Crashed == 1 })
	other, release := waits(t, p)
	if _, err := p.Do(within(t), nextOne, bob, procpool.BeginAnew()); !errors.Is(err, procpool.ErrBusy) {
		t.Errorf("the query for which there is no room: %v", err)
	}
	release()
	if _, err := other.Result(); err != nil {
		t.Error(err)
	}
	if _, err := p.Do(within(t), nextOne, bob); !errors.Is(err, procpool.ErrSessionLost) {
		t.Errorf("the next one: %v", err)
	}
}

// TestSessionThatLeftARetiredWorkerIsNotLost kills a worker that finishes its last query, when
// its key has a session with the next worker already.
func TestSessionThatLeftARetiredWorkerIsNotLost(t *testing.T) {
	p := start(t, "many:2", func(c *procpool.Config) {
		c.MaxWorkers, c.Surge = 2, procpool.Off
		c.Recycle = procpool.Recycle{MaxQueries: 2, Jitter: procpool.Off, Every: time.Hour}
	})
	bob := procpool.Key("bob")
	last, _ := waits(t, p)
	pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw(), bob))
	if err != nil {
		t.Fatal(err)
	}
	do(t, p, nextOne, bob)
	if got := do(t, p, nextOne, bob); got != "1" {
		t.Fatalf("the worker has not retired: %s", got)
	}
	kill(t, pid)
	if _, err := last.Result(); !errors.As(err, new(*procpool.CrashError)) {
		t.Errorf("its last query: %v", err)
	}
	if got := do(t, p, ask{Op: "env", Text: "PATH"}.raw(), bob); got == "" {
		t.Errorf("the session with the next worker: %s", got)
	}
}

// TestSessionThatMayBeginAnewRunsAlone has the extra worker take a query with a key, and keep
// the key to itself while it lives.
func TestSessionThatMayBeginAnewRunsAlone(t *testing.T) {
	p := start(t, "serve", strict)
	q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
	if got := do(t, p, q, procpool.Key("bob"), procpool.Idempotent(), procpool.BeginAnew()); got != `"second time"` {
		t.Errorf("got %s", got)
	}
	eventually(t, "the extra worker has ended", func() bool { return p.Stats().Ended[procpool.CauseAlone] == 1 })
	if _, err := p.Do(within(t), nextOne, procpool.Key("bob")); !errors.Is(err, procpool.ErrSessionLost) {
		t.Errorf("its session has ended with the extra worker: %v", err)
	}
	if got := do(t, p, nextOne, procpool.Key("bob")); got != "1" {
		t.Errorf("got %s", got)
	}
}

// TestPoisonOfOneTenantIsNotThatOfOthers sends one payload with the metadata of three.
func TestPoisonOfOneTenantIsNotThatOfOthers(t *testing.T) {
	p := start(t, "serve", strict)
	if _, err := p.Do(within(t), nextOne, of("mallory"), procpool.Idempotent()); !errors.Is(err, procpool.ErrPoison) {
		t.Fatal(err)
	}
	for _, tenant := range []string{"bob", "carol"} {
		do(t, p, nextOne, of(tenant))
	}
	if _, err := p.Do(within(t), nextOne, of("mallory")); !errors.Is(err, procpool.ErrPoison) {
		t.Errorf("her payload again: %v", err)
	}
}

// TestOnePoisonAmongSeventy has two workers with 71 queries, of which one kills. The others
// are answered by one extra worker, and new queries do not wait for them.
func TestOnePoisonAmongSeventy(t *testing.T) {
	dir := t.TempDir()
	n := 0
	p := startPool(t, func() *exec.Cmd {
		if n++; n > 2 {
			return self("gated:" + filepath.Join(dir, "open"))
		}
		return self("many:40")
	}, func(c *procpool.Config) {
		strict(c)
		c.MinWorkers, c.MaxQueue, c.StartTimeout = 2, 10, patience
	})
	eventually(t, "both are ready", func() bool { return p.Stats().Ready == 2 })
	var all []*procpool.Query
	for i := range 70 {
		q := submit(t, p, ask{Op: "wait", Path: filepath.Join(dir, "open"), Text: fmt.Sprint(i)}.raw(), procpool.Idempotent(), procpool.Caller("bob"))
		eventually(t, "a worker has it", func() bool { return q.State() == procpool.QueryProcessing })
		all = append(all, q)
	}
	bad := submit(t, p, poison(1).raw(), procpool.Idempotent(), procpool.Caller("mallory"))
	eventually(t, "its worker has died", func() bool { return p.Stats().Retried >= 35 })
	for range 20 { // more than the queue takes
		do(t, p, ask{}.raw(), procpool.Caller("bob"))
	}
	open(t, dir)
	for i, q := range all {
		if got, err := q.Result(); err != nil || string(got) != `"waited"` {
			t.Errorf("%d: %s, %v", i, got, err)
		}
	}
	if _, err := bad.Result(); !errors.Is(err, procpool.ErrPoison) {
		t.Errorf("the poison: %v", err)
	}
	if s := p.Stats(); s.Spawned > 5 {
		t.Errorf("%d workers were started, want two, one for the dead one, and two extra ones", s.Spawned)
	}
}

// TestCallerBesidePoisonIsNotRefused has workers with six queries of one caller and a
// poisonous one of another, which may not run again and is a new one each time.
func TestCallerBesidePoisonIsNotRefused(t *testing.T) {
	p := start(t, "many:8", func(c *procpool.Config) { strict(c); c.MaxWorkers, c.Poison.Window = 1, time.Hour })
	for round := range 30 {
		var bobs []*procpool.Query
		for i := range 6 {
			bobs = append(bobs, submit(t, p, ask{Op: "sleep", Seconds: 0.1, Text: fmt.Sprint(round, i)}.raw(), procpool.Caller("bob")))
		}
		_, bad := p.Do(within(t), poison(round).raw(), procpool.Caller("mallory"))
		for _, q := range bobs {
			if _, err := q.Result(); err != nil && !errors.As(err, new(*procpool.CrashError)) || errors.Is(err, procpool.ErrPoison) {
				t.Fatalf("round %d: bob's query: %v", round, err)
			}
		}
		if errors.Is(bad, procpool.ErrDeaths) {
			if s := p.Stats(); s.Crashed > 10 {
				t.Errorf("%d workers died before she was refused, want at most two for each of five", s.Crashed)
			}
			return
		}
	}
	t.Error("mallory goes on killing")
}
