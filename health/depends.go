package health

import (
	"fmt"
	"slices"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// cycle returns the path from a new check through its dependencies back to
// itself, or nil. checks has the registered checks.
func cycle(name string, dependsOn []string, checks []*check) []string {
	seen := make(map[string]bool)
	var walk func(at string, needs []string) []string
	walk = func(at string, needs []string) []string {
		for _, need := range needs {
			if need == name {
				return []string{at, name}
			}
			if c := find(checks, need); c != nil && !seen[need] {
				seen[need] = true
				if way := walk(need, c.dependsOn); way != nil {
					return append([]string{at}, way...)
				}
			}
		}
		return nil
	}
	return walk(name, dependsOn)
}

// missing returns an error for each dependency that is not registered.
func (p *plane) missing() (errs []error) {
	checks := *p.checks.Load()
	for _, c := range checks {
		for _, need := range c.dependsOn {
			if find(checks, need) != nil {
				continue
			}
			names := make([]string, len(checks))
			for i, other := range checks {
				names[i] = other.name
			}
			names = slices.DeleteFunc(names, func(n string) bool { return n == c.name })
			hint := ""
			if near := suggest.Nearest(need, names); near != "" {
				hint = fmt.Sprintf(": did you mean %q?", near)
			}
			errs = append(errs, fmt.Errorf("%w: %s check %q depends on %q, which is not registered%s", ErrInvalid, p.kind, c.name, need, hint))
		}
	}
	return errs
}

// root returns the name of the check that causes a failure: the first dependency
// that does not pass, or the root of that dependency. It is "" when every
// dependency passes.
func (p *plane) root(dependsOn []string) string {
	checks := *p.checks.Load()
	for _, need := range dependsOn {
		if c := find(checks, need); c != nil && !c.passes() {
			if deeper := p.root(c.dependsOn); deeper != "" {
				return deeper
			}
			return need
		}
	}
	return ""
}

// explain sets the root of the check's failure, if another check causes it.
func (p *plane) explain(it *item) {
	if len(it.dependsOn) > 0 && !it.passes(p.kind) {
		it.causedBy = p.root(it.dependsOn)
	}
}
