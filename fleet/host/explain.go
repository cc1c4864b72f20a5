package host

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
)

// Means is a name that a worker asks for, or a bound that its tenant has, and the part of the
// configuration that grants it.
type Means struct {
	// What is topic, output, variable, secret, url, url secret, signature, places, memory, lines
	// or timers.
	What string
	// Name is the name that the worker's spec has, and for a bound its value.
	Name string
	// By is the grant as grants.TENANT.KEY, with the pattern that covers the name. It is empty for
	// what the host allows every tenant without a grant.
	By string
	// Missing says why the worker may not have it; empty when it may.
	Missing string
}

// Explain returns what a worker asks for and what its tenant may have, each with the grant that
// this host's configuration has for it. It has names and no values, and reads no secret.
func (h *Host) Explain(r *Record) []Means {
	var all []Means
	add := func(what, name, by string, err error) {
		m := Means{What: what, Name: name, By: by}
		if err != nil {
			m.Missing = err.Error()
		}
		all = append(all, m)
	}
	named := func(what string, names []string, find func(*Record, string) (string, error)) {
		for _, name := range names {
			by, err := find(r, name)
			add(what, name, by, err)
		}
	}
	named("topic", []string{r.Topic}, h.mayTake)
	if r.OutputTopic != "" {
		named("output", []string{r.OutputTopic}, h.mayPublish)
	}
	named("variable", r.Env, func(r *Record, name string) (string, error) {
		_, by, err := h.variable(r, name)
		return by, err
	})
	named("secret", r.Secrets, func(r *Record, name string) (string, error) {
		_, by, err := h.secret(r, name)
		return by, err
	})
	named("url", r.HTTP.Allow, h.mayAsk)
	named("url secret", r.HTTP.Secrets, func(r *Record, name string) (string, error) {
		_, by, err := h.secretGoes(r, name)
		return by, err
	})
	for _, g := range h.grantsOf(r.Tenant) {
		for _, key := range slices.Sorted(maps.Keys(g.Keys)) {
			add("signature", key, "grants."+g.tenant+".keys."+key, nil)
		}
	}
	bound := func(what, key string, of func(*Grant) int64, otherwise string) {
		for _, g := range h.grantsOf(r.Tenant) {
			if n := of(&g.Grant); n != 0 {
				add(what, fmt.Sprint(n), "grants."+g.tenant+"."+key, nil)
				return
			}
		}
		add(what, otherwise, "", nil)
	}
	bound("places", "handlers", func(g *Grant) int64 { return int64(g.Handlers) }, fmt.Sprint(cap(h.budget.places)+1))
	bound("memory", "memory", func(g *Grant) int64 { return g.Memory }, fmt.Sprint(h.budget.memory))
	bound("lines", "lines", func(g *Grant) int64 { return int64(g.Lines) }, fmt.Sprint(linesRate))
	bound("timers", "timers", func(g *Grant) int64 { return int64(g.Timers) }, fmt.Sprint(effects.MaxTimers))
	return all
}
