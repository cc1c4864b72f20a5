package health_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
)

func probePath(r *health.Registry, path string) {
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
}

// A registry works alone: mount its handler in any server. Here two checks fail
// for one reason, and the answer names it once.
func Example() {
	db := health.ProbeFunc(func(context.Context) error { return errors.New("connection refused") })
	orders := health.ProbeFunc(func(context.Context) error { return errors.New("cannot read orders") })

	reg := health.NewRegistry()
	_ = reg.RegisterReadiness("db", db, health.WithCache(time.Second))
	_ = reg.RegisterReadiness("orders", orders, health.WithDependsOn("db"))
	if err := reg.Err(); err != nil { // one place for every registration that was refused
		fmt.Println(err)
		return
	}
	srv := httptest.NewServer(reg.Handler())
	defer srv.Close()
	defer reg.Close(context.Background())

	resp, err := http.Get(srv.URL + "/readyz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.Status)
	fmt.Println(string(body))
	// Output:
	// 503 Service Unavailable
	// {"status":"fail","checks":{"db":"connection refused","orders":"caused by db"}}
}

// Non-critical checks are in the answer and do not fail it.
func ExampleNewRegistry() {
	ping := func(context.Context) error { return errors.New("connection refused") }

	reg := health.NewRegistry()
	reg.RegisterLiveness("self", health.ProbeFunc(func(context.Context) error { return nil }))
	reg.RegisterReadiness("db", health.ProbeFunc(ping))
	reg.RegisterReadiness("cache", health.ProbeFunc(ping), health.WithNonCritical())

	probePath(reg, "/healthz")
	probePath(reg, "/readyz")
	probePath(reg, "/readyz?verbose&exclude=db")
	// Output:
	// 200 {"status":"ok","checks":{"self":"ok"}}
	// 503 {"status":"fail","checks":{"cache":"connection refused","db":"connection refused"}}
	// 200 [-]cache failed (not critical): connection refused
	// [+]db excluded: ok
	// readyz check passed
}

// A periodic check runs in the background from Start to Close. Probes are
// answered from its last result.
func ExampleWithPeriodic() {
	reg := health.NewRegistry()
	err := reg.RegisterReadiness("db",
		health.ProbeFunc(func(context.Context) error { return nil }),
		health.WithPeriodic(10*time.Second),
		health.WithFailureThreshold(3),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := reg.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	probePath(reg, "/readyz")
	fmt.Println(reg.Close(context.Background()))
	// Output:
	// 200 {"status":"ok","checks":{"db":"ok"}}
	// <nil>
}

// Listeners hear of each change of a check's state once, and in order.
func ExampleRegistry_Events() {
	var err error
	reg := health.NewRegistry()
	_ = reg.RegisterReadiness("db", health.ProbeFunc(func(context.Context) error { return err }))
	stop := reg.Events().Listen(64, func(e fsm.Event) {
		fmt.Println(e.Kind, e.Name, e.From, "->", e.To, e.Cause)
	})
	for _, err = range []error{nil, nil, errors.New("connection refused"), nil} {
		w := httptest.NewRecorder()
		reg.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	}
	stop() // returns when the listener has heard every event
	// Output:
	// probe readiness/db unknown -> up <nil>
	// probe readiness/db up -> down connection refused
	// probe readiness/db down -> up <nil>
}

func ExampleRegistry_Snapshot() {
	reg := health.NewRegistry()
	_ = reg.RegisterReadiness("db", health.ProbeFunc(func(context.Context) error { return health.ErrUnknown }))
	w := httptest.NewRecorder()
	reg.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz/db", nil))
	for _, st := range reg.Snapshot() {
		fmt.Println(st.Plane, st.Name, st.State, st.Error, st.Runs)
	}
	// Output:
	// readiness db unknown state unknown 1
}
