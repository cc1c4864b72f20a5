//go:build unix

package procpool_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// blocked is a pool of one worker, which is busy until release is called.
func blocked(t *testing.T, change func(*procpool.Config)) (p *procpool.Pool, release func(), order func(*testing.T) []string) {
	t.Helper()
	p = start(t, "serve", func(c *procpool.Config) {
		c.MaxQueue = 20
		if change != nil {
			change(c)
		}
	})
	do(t, p, ask{}.raw())
	block := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Caller("blocker"))
	events := p.Events().Subscribe(1000)
	t.Cleanup(events.Close)
	return p, func() { block.Cancel(nil) }, func(t *testing.T) (ids []string) {
		eventually(t, "all are done", func() bool { return p.Stats().Open == 0 })
		for {
			e, err := events.Next(canceled())
			if err != nil {
				return ids
			}
			if e.Kind == procpool.KindQuery && e.To == string(procpool.QueryProcessing) {
				ids = append(ids, e.Name)
			}
		}
	}
}

func TestFairSharesTakeTurns(t *testing.T) {
	p, release, order := blocked(t, func(c *procpool.Config) { c.FairShares = true })
	caller := map[string]string{}
	for _, name := range strings.Split("aaaaaabbc", "") {
		caller[submit(t, p, ask{}.raw(), procpool.Caller(name)).ID()] = name
	}
	release()
	got := ""
	for _, id := range order(t) {
		got += caller[id]
	}
	if got != "abcabaaaa" {
		t.Errorf("the order is %s", got)
	}
}

func TestFairShareOfAFullQueue(t *testing.T) {
	p, release, _ := blocked(t, func(c *procpool.Config) { c.FairShares, c.MaxQueue = true, 4 })
	var hog, other []*procpool.Query
	for range 4 {
		hog = append(hog, submit(t, p, ask{}.raw(), procpool.Caller("hog")))
	}
	for range 3 {
		other = append(other, submit(t, p, ask{}.raw(), procpool.Caller("other")))
	}
	release()
	for name, want := range map[string][]bool{"hog": {true, true, false, false}, "other": {true, true, false}} {
		var got []bool
		for _, q := range map[string][]*procpool.Query{"hog": hog, "other": other}[name] {
			_, err := q.Result()
			if err != nil && (!errors.Is(err, procpool.ErrBusy) || q.State() != procpool.QueryRejected) {
				t.Errorf("%s: %s, %v", name, q.State(), err)
			}
			got = append(got, err == nil)
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %s %v were answered, want %v", name, got, want)
		}
	}
}
