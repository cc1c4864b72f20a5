package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// A server filters lists. A watch of a server sends everything, so its filters are here, and
// mean the same.

// unlimited refuses flags that select a part of a list by its size or order.
func unlimited(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--watch and --%s exclude each other: a watch shows everything that matches, as it comes", name)
		}
	}
	return nil
}

// selectEntities adds the terms of a selector to the filters of a list.
func selectEntities(selector string, req *operatorv1.ListEntitiesRequest) error {
	if selector == "" {
		return nil
	}
	terms, err := parseSelector(selector)
	if err != nil {
		return err
	}
	for _, t := range terms {
		switch {
		case t.not:
			return fmt.Errorf("--selector: %s!=%s: for entities only KEY=VALUE is possible", t.key, t.value)
		case t.key == "phase" && req.GetPhase() != "" && req.GetPhase() != t.value:
			return fmt.Errorf("two phases are given, %s and %s: no entity is in both", req.GetPhase(), t.value)
		case t.key == "phase":
			req.Phase = t.value
		default:
			req.Match = append(req.Match, t.key+"="+t.value)
		}
	}
	return nil
}

// entityMatches reports whether a list with the filters of req would have an entity.
func entityMatches(req *operatorv1.ListEntitiesRequest, e *operatorv1.Entity) bool {
	switch {
	case req.GetPhase() != "" && e.GetPhase() != req.GetPhase(),
		req.GetActive() && e.GetTerminal(),
		!strings.Contains(e.GetId(), req.GetContains()),
		req.GetUpdatedAfter() != nil && !e.GetUpdatedAt().AsTime().After(req.GetUpdatedAfter().AsTime()):
		return false
	}
	for _, term := range req.GetMatch() {
		name, want, _ := strings.Cut(term, "=")
		value := e.GetFields().GetFields()[name]
		if value == nil || !sameValue(value.AsInterface(), want) {
			return false
		}
	}
	return true
}

// sameValue reports whether a value of an entity is what a filter wants.
func sameValue(value any, want string) bool {
	switch v := value.(type) {
	case string:
		if v == want {
			return true
		}
		at, err := time.Parse(time.RFC3339Nano, v)
		wanted, wrong := time.Parse(time.RFC3339Nano, want)
		return err == nil && wrong == nil && at.Equal(wanted)
	case float64:
		n, err := strconv.ParseFloat(want, 64)
		return err == nil && n == v
	case bool:
		b, err := strconv.ParseBool(want)
		return err == nil && b == v
	}
	return false
}

// processMatches reports whether a list with the filters of req would have a process.
func processMatches(req *operatorv1.ListProcessesRequest, p *operatorv1.Process) bool {
	text := strings.ToLower(req.GetContains())
	return (req.GetService() == "" || p.GetService() == req.GetService()) &&
		(req.GetPhase() == "" || p.GetPhase() == req.GetPhase()) &&
		(!req.GetProblems() || len(p.GetFindings()) > 0) &&
		slices.ContainsFunc([]string{p.GetId(), p.GetService(), p.GetHost(), p.GetVersion()}, func(s string) bool { return strings.Contains(strings.ToLower(s), text) })
}
