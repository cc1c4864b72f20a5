package workflows

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// A server filters lists. A watch of a server sends everything, so its filters are here, and
// mean the same.

// selectEntities adds the terms of a selector to the filters of a list.
func selectEntities(selector string, req *operatorv1.ListEntitiesRequest) error {
	terms, err := cli.ParseSelector(selector)
	if err != nil {
		return err
	}
	for _, t := range terms {
		switch {
		case t.Not:
			return fmt.Errorf("--selector: %s!=%s: for entities only KEY=VALUE is possible", t.Key, t.Value)
		case t.Key == "phase" && req.GetPhase() != "" && req.GetPhase() != t.Value:
			return fmt.Errorf("two phases are given, %s and %s: no entity is in both", req.GetPhase(), t.Value)
		case t.Key == "phase":
			req.Phase = t.Value
		default:
			req.Match = append(req.Match, t.Key+"="+t.Value)
		}
	}
	return nil
}

// Matches reports whether a list with the filters of req would have an entity.
func Matches(req *operatorv1.ListEntitiesRequest, e *operatorv1.Entity) bool {
	isInPhase := req.GetPhase() == "" || e.GetPhase() == req.GetPhase()
	isActive := !req.GetActive() || !e.GetTerminal()
	isNew := req.GetUpdatedAfter() == nil || e.GetUpdatedAt().AsTime().After(req.GetUpdatedAfter().AsTime())
	if !isInPhase || !isActive || !isNew || !strings.Contains(e.GetId(), req.GetContains()) {
		return false
	}
	for _, term := range req.GetMatch() {
		name, want, _ := strings.Cut(term, "=")
		value := e.GetFields().GetFields()[name]
		if value == nil || !isValue(value.AsInterface(), want) {
			return false
		}
	}
	return true
}

// isValue reports whether a value of an entity is what a filter wants.
func isValue(value any, want string) bool {
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
