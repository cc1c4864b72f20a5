package host

import (
	"errors"
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

	value string     // of a variable, or where the host reads a secret
	goes  HTTPSecret // where a secret of requests goes
	err   error      // why it is missing
}

// Explain returns what a worker asks for and what its tenant may have, each with the grant that
// this host's configuration has for it. It has names and no values, and reads no secret.
func (h *Host) Explain(r *Record) []Means {
	all := h.asks(r)
	for i := range all {
		all[i].value = ""
		if err := all[i].err; err != nil {
			all[i].Missing = err.Error()
		}
	}
	add := func(what, name, by string) { all = append(all, Means{What: what, Name: name, By: by}) }
	for _, g := range h.grantsOf(r.Tenant) {
		for _, key := range slices.Sorted(maps.Keys(g.Keys)) {
			add("signature", key, "grants."+g.tenant+".keys."+key)
		}
	}
	bound := func(what, key string, of func(*Grant) int64, otherwise string) {
		for _, g := range h.grantsOf(r.Tenant) {
			if n := of(&g.Grant); n != 0 {
				add(what, fmt.Sprint(n), "grants."+g.tenant+"."+key)
				return
			}
		}
		add(what, otherwise, "")
	}
	bound("places", "handlers", func(g *Grant) int64 { return int64(g.Handlers) }, fmt.Sprint(cap(h.budget.places)+1))
	bound("memory", "memory", func(g *Grant) int64 { return g.Memory }, fmt.Sprint(h.budget.memory))
	bound("lines", "lines", func(g *Grant) int64 { return int64(g.Lines) }, fmt.Sprint(linesRate))
	bound("timers", "timers", func(g *Grant) int64 { return int64(g.Timers) }, fmt.Sprint(effects.MaxTimers))
	return all
}

// asks returns what a worker asks for.
func (h *Host) asks(r *Record) (all []Means) {
	add := func(what, name string, m Means, err error) {
		m.What, m.Name, m.err = what, name, err
		all = append(all, m)
	}
	by, err := h.mayTake(r, r.Topic)
	add("topic", r.Topic, Means{By: by}, err)
	if r.OutputTopic != "" {
		by, err := h.mayPublish(r, r.OutputTopic)
		add("output", r.OutputTopic, Means{By: by}, err)
	}
	for _, name := range r.Env {
		v, by, err := h.lookUp(r, "variable", name, "env", func(g *Grant) map[string]string { return g.Env })
		add("variable", name, Means{By: by, value: v}, err)
	}
	for _, name := range r.Secrets {
		source, by, err := h.secret(r, name)
		add("secret", name, Means{By: by, value: source}, err)
	}
	for _, pattern := range r.HTTP.Allow {
		by, err := h.mayAsk(r, pattern)
		add("url", pattern, Means{By: by}, err)
	}
	for _, name := range r.HTTP.Secrets {
		to, by, err := h.secretGoes(r, name)
		source, _, missing := h.secret(r, name)
		add("url secret", name, Means{By: by, value: source, goes: to}, errors.Join(missing, err))
	}
	return all
}
