package health

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// chain returns a registry in which orders depends on db, and db on network.
func chain(t *testing.T, opts ...Option) (r *Registry, network, db, orders *fake) {
	r, network, db, orders = NewRegistry(), new(fake), new(fake), new(fake)
	must(t, r.RegisterReadiness("orders", orders, append(opts, WithDependsOn("db"))...)) // registered before its dependency
	must(t, r.RegisterReadiness("db", db, append(opts, WithDependsOn("network"))...))
	must(t, r.RegisterReadiness("network", network, opts...))
	must(t, r.Err())
	return r, network, db, orders
}

func TestFailureNamesItsRoot(t *testing.T) {
	r, network, db, orders := chain(t)
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok","network":"ok","orders":"ok"}}`)

	orders.set(errors.New("no rows"))
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","network":"ok","orders":"no rows"}}`)

	db.set(errDown)
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"connection refused","network":"ok","orders":"caused by db"}}`)

	network.set(ErrUnknown)
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"caused by network","network":"state unknown","orders":"caused by network"}}`)
	expect(t, r, "/readyz?verbose", 503, `[-]db failed (caused by network): connection refused
[?]network unknown: state unknown
[-]orders failed (caused by network): no rows
readyz check failed`)
	expect(t, r, "/readyz/orders", 503, `{"status":"fail","checks":{"orders":"caused by network"}}`)
	var caused []string
	for _, st := range r.Snapshot() {
		caused = append(caused, st.Name+":"+strings.Join(st.DependsOn, ",")+":"+st.CausedBy+":"+st.Error)
	}
	if want := []string{"db:network:network:connection refused", "network:::state unknown", "orders:db:network:no rows"}; !slices.Equal(caused, want) {
		t.Errorf("the snapshot says %q, want %q", caused, want)
	}

	// The root still fails, but the check between them passes: orders is its own
	// root.
	db.set(nil)
	network.set(nil)
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","network":"ok","orders":"no rows"}}`)
	orders.set(nil)
	expect(t, r, "/readyz", 200, "")
}

// A passing check has no cause. A check that fails because of its dependency
// still fails the plane.
func TestDependencyChangesNoVerdict(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	f.set(errDown)
	must(t, r.RegisterReadiness("network", f, WithNonCritical()))
	must(t, r.RegisterReadiness("db", ProbeFunc(passing), WithDependsOn("network")))
	must(t, r.RegisterLiveness("cache", f, WithNonCritical()))
	must(t, r.RegisterLiveness("self", f, WithDependsOn("cache")))
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok","network":"connection refused"}}`)
	expect(t, r, "/livez", 503, `{"status":"fail","checks":{"cache":"connection refused","self":"caused by cache"}}`)
	f.set(ErrUnknown) // which passes on liveness
	expect(t, r, "/livez", 200, `{"status":"ok","checks":{"cache":"state unknown","self":"state unknown"}}`)
}

// A plane keeps its answer. It must not keep a root that has changed.
func TestRootIsNotKeptTooLong(t *testing.T) {
	r, _, db, orders := chain(t)
	orders.set(errDown)
	for range 3 {
		db.set(errDown)
		expect(t, r, "/readyz/db", 503, "") // does not probe the plane itself
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"connection refused","network":"ok","orders":"caused by db"}}`)
		db.set(nil)
		expect(t, r, "/readyz/db", 200, "")
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","network":"ok","orders":"connection refused"}}`)
	}
}

// An excluded dependency does not run. Its last result is still shown as the cause.
func TestExcludedDependencyExplains(t *testing.T) {
	r, _, db, orders := chain(t)
	db.set(errDown)
	orders.set(errDown)
	expect(t, r, "/readyz", 503, "")
	expect(t, r, "/readyz?exclude=db&verbose", 503, `[+]db excluded: ok
[+]network ok
[-]orders failed (caused by db): connection refused
readyz check failed`)
}

func TestDependencyOnItselfIsRefused(t *testing.T) {
	r := NewRegistry()
	p := ProbeFunc(passing)
	must(t, r.RegisterReadiness("a", p, WithDependsOn("b", "d")))
	must(t, r.RegisterReadiness("b", p, WithDependsOn("c")))
	must(t, r.RegisterStartup("c", p, WithDependsOn("a"))) // another plane
	for want, err := range map[string]error{
		"c -> a -> b -> c": r.RegisterReadiness("c", p, WithDependsOn("d", "a")),
		"d -> d":           r.RegisterReadiness("d", p, WithDependsOn("d")),
		"d -> a -> d":      r.RegisterReadiness("d", p, WithDependsOn("a")),
	} {
		if !errors.Is(err, ErrInvalid) || !strings.HasSuffix(err.Error(), "the check would depend on itself: "+want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"a":"ok","b":"ok"}}`)
}

func TestMissingDependencyIsReported(t *testing.T) {
	r := NewRegistry()
	p := ProbeFunc(passing)
	must(t, r.RegisterReadiness("orders", p, WithDependsOn("databse", "queue", "queue")))
	must(t, r.RegisterReadiness("database", p))
	must(t, r.RegisterLiveness("queue", p))
	err := r.Err()
	const want = `health: invalid probe: readiness check "orders" depends on "databse", which is not registered: did you mean "database"?
health: invalid probe: readiness check "orders" depends on "queue", which is not registered`
	if err == nil || err.Error() != want || !errors.Is(err, ErrInvalid) {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	must(t, r.RegisterReadiness("databse", p))
	must(t, r.RegisterReadiness("queue", p))
	must(t, r.Err())
	for _, name := range []string{"", "a/b", "lifecycle"} {
		if err := r.RegisterReadiness("x", p, WithDependsOn(name)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a dependency on %q: %v, want ErrInvalid", name, err)
		}
	}
}
