package presence_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

const adminToken = "0123456789abcdef"

// admin sends a POST to the App's own endpoints, as an operator on the pod does.
func admin(t *testing.T, app *lifecycle.App, path string) {
	t.Helper()
	w := &response{header: http.Header{}}
	r, err := http.NewRequest(http.MethodPost, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	app.Handler().ServeHTTP(w, r)
	if w.code != http.StatusOK {
		t.Fatalf("POST %s answers %d", path, w.code)
	}
}

// Operators suspend and resume a process through the fleet and through its own
// endpoints, in any order. The fleet always agrees with /readyz.
func TestFleetAndReadyzAgree(t *testing.T) {
	js := nats(t)
	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off,
		AdminToken: adminToken}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	id := presence.Announce(app, js, presence.Config{Logger: brokertest.Quiet()})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() {
		app.Stop(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	agree := func(what, suspended string) {
		t.Helper()
		want := http.StatusOK
		if suspended != "" {
			want = http.StatusServiceUnavailable
		}
		if code := readyz(app); code != want {
			t.Errorf("%s: /readyz answers %d, want %d", what, code, want)
		}
		await(t, f, id, what+" in the fleet", func(p presence.Process) bool {
			return p.Ready == (suspended == "") && p.Suspended == suspended
		})
	}

	if _, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil {
		t.Fatal(err)
	}
	agree("suspended by the fleet", "new disk (asked by ada)")
	admin(t, app, "/admin/resume")
	agree("resumed by /admin/resume", "")
	admin(t, app, "/admin/suspend?reason=deploy")
	agree("suspended by /admin/suspend", "deploy")
	if _, err := f.Resume(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	agree("resumed by the fleet", "")
	app.Suspend("the program itself")
	agree("suspended by the program", "the program itself")
	app.Resume()
	agree("resumed by the program", "")
}
