package lifecycle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

const adminToken = "an admin's token"

var token = strings.ReplaceAll(adminToken, " ", "-")

// call asks an App's handler with the token.
func call(ctx context.Context, h http.Handler, method, path string) (code int, body string) {
	w := httptest.NewRecorder()
	req := httptest.NewRequest(method, path, nil).WithContext(ctx)
	req.Header.Set("Authorization", "Bearer "+token)
	h.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

// adminRig returns a running App with the operators' endpoints. It waits for its drain
// window although it has no listener.
func adminRig(t *testing.T, cfg lifecycle.Config) *rig {
	t.Helper()
	cfg.AdminToken, cfg.DrainWait = lifecycle.Secret(token), lifecycle.WaitAlways
	return newRig(t, cfg)
}

func (r *rig) preStopAfter(ctx context.Context, d time.Duration) {
	r.after(d, func() {
		r.mark("preStop called")
		code, body := call(ctx, r.Handler(), http.MethodGet, "/admin/prestop")
		r.mark("preStop answered %d %q", code, body)
	})
}

func TestPreStopIsTheWindowAndTheSignalAfterItAddsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		r.preStopAfter(t.Context(), time.Second)
		// A kubelet calls the preStop hook, and sends SIGTERM when the hook has
		// returned.
		go func() {
			<-r.Reached(lifecycle.PhaseDraining)
			if code, _ := get(r.Registry().Handler(), "/readyz"); code != http.StatusServiceUnavailable {
				t.Errorf("/readyz is %d in the drain that preStop began, want 503", code)
			}
		}()
		r.signalAfter(6*time.Second, syscall.SIGTERM)
		r.Go("cause", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second) // the hook has its answer
			r.mark("unit saw %v", context.Cause(ctx))
			return ctx.Err()
		})
		r.OnShutdown("hook", func(context.Context) error {
			time.Sleep(2 * time.Second) // the signal has come
			r.mark("hook done")
			return nil
		})
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
		r.wantTrail("1s preStop called", `6s preStop answered 200 "the drain window is over\n"`, "7s unit saw stop requested", "9s hook done")
		if rep := r.Report(); rep.Window != "full" || !strings.Contains(rep.Reason, "preStop") {
			t.Errorf("report: window %q, reason %q; want a full window that preStop began", rep.Window, rep.Reason)
		}
	})
}

func TestSignalDuringPreStopSkipsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		r.preStopAfter(t.Context(), time.Second)
		r.preStopAfter(t.Context(), 3*time.Second) // a second caller joins the first
		r.signalAfter(2*time.Second, syscall.SIGTERM)
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
		if took := r.took(lifecycle.PhaseDraining); took != 5*time.Second {
			t.Errorf("the window took %v, want all of its 5s", took)
		}
		synctest.Wait()
		if at := r.EnteredAt(lifecycle.PhaseStopped).Sub(r.began); at != 6*time.Second {
			t.Errorf("stopped after %v, want 6s", at)
		}
	})
}

func TestPreStopGoesOnWhenTheCallerHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		ctx, hangUp := context.WithCancel(t.Context())
		r.preStopAfter(ctx, time.Second)
		r.after(2*time.Second, hangUp)
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
		if took := r.took(lifecycle.PhaseDraining); took != 5*time.Second {
			t.Errorf("the window took %v, want all of its 5s", took)
		}
	})
}

func TestPreStopWhileStartingReturnsWithoutAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		r.Go("slow", untilCancelled, lifecycle.WithStartCondition())
		r.preStopAfter(t.Context(), time.Second)
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		// The two may come in either order.
		if at := r.EnteredAt(lifecycle.PhaseStopped).Sub(r.began); at != time.Second || len(r.trail) != 2 {
			t.Errorf("stopped after %v, want 1s; happened:\n\t%s", at, strings.Join(r.trail, "\n\t"))
		}
	})
}

func TestPreStopOfAJobIsNotCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{ExitOnSignal: true})
		r.preStopAfter(t.Context(), time.Second)
		if code := lifecycle.ExitCode(r.Run(context.Background())); code != 143 {
			t.Errorf("exit code %d, want that of SIGTERM: 143", code)
		}
		synctest.Wait()
	})
}

func TestAdminNeedsTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		r.after(time.Second, func() {
			for _, path := range []string{"/admin/prestop", "/admin/suspend", "/admin/resume"} {
				for _, header := range []string{"", "Bearer", "Bearer ", "Bearer " + token[:15], "Bearer " + token + "x", "Basic " + token, token, "Bearer\t" + token} {
					for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
						w := httptest.NewRecorder()
						req := httptest.NewRequest(method, path, nil)
						req.Header.Set("Authorization", header)
						r.Handler().ServeHTTP(w, req)
						if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") == "" {
							t.Errorf("%s %s with Authorization %q is %d, want 401", method, path, header, w.Code)
						}
					}
				}
			}
			for _, q := range []string{"GET /admin/suspend", "GET /admin/resume", "HEAD /admin/prestop", "DELETE /admin/prestop"} {
				method, path, _ := strings.Cut(q, " ")
				if code, _ := call(t.Context(), r.Handler(), method, path); code != http.StatusMethodNotAllowed {
					t.Errorf("%s is %d, want 405", q, code)
				}
			}
			if code, body := get(r.Handler(), "/readyz"); r.Phase() != lifecycle.PhaseRunning || code != http.StatusOK {
				t.Errorf("a refused request had an effect: phase %s, /readyz %d %s", r.Phase(), code, body)
			}
			r.Stop(nil)
		})
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestAdminIsOffByDefault(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	for _, path := range []string{"/admin/prestop", "/admin/suspend", "/admin/resume", "/admin/", "/admin"} {
		if code, _ := call(t.Context(), r.Handler(), http.MethodPost, path); code != http.StatusNotFound {
			t.Errorf("POST %s is %d without a configured token, want 404", path, code)
		}
	}
}

func TestAdminTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := lifecycle.New(lifecycle.Config{AdminTokenFile: file})
	wantErr(t, err, os.ErrNotExist, "AdminTokenFile", file)
	write("short")
	_, err = lifecycle.New(lifecycle.Config{AdminTokenFile: file})
	wantErr(t, err, nil, "AdminTokenFile", "5 characters", "16 or more")
	_, err = lifecycle.New(lifecycle.Config{AdminTokenFile: t.TempDir()})
	wantErr(t, err, nil, "AdminTokenFile", "not a regular file")

	write("the-token-before\n")
	r := newRig(t, lifecycle.Config{AdminTokenFile: file})
	if code, _ := call(t.Context(), r.Handler(), http.MethodPost, "/admin/resume"); code != http.StatusUnauthorized {
		t.Errorf("with another token than the file's: %d, want 401", code)
	}
	write("  " + token + "\r\n") // as Kubernetes replaces a mounted Secret
	if code, _ := call(t.Context(), r.Handler(), http.MethodPost, "/admin/resume"); code != http.StatusOK {
		t.Errorf("with the token that the file has now: %d, want 200", code)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if code, body := call(t.Context(), r.Handler(), http.MethodPost, "/admin/resume"); code != http.StatusServiceUnavailable || strings.Contains(body, file) {
		t.Errorf("with the file removed: %d %q, want 503 and no word about the file", code, body)
	}
}

func TestAdminTokenIsValidated(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  lifecycle.Config
		says []string
	}{
		"both":   {lifecycle.Config{AdminToken: lifecycle.Secret(token), AdminTokenFile: "x"}, []string{"AdminToken and AdminTokenFile"}},
		"short":  {lifecycle.Config{AdminToken: "secret"}, []string{"AdminToken", "6 characters", "16 or more"}},
		"long":   {lifecycle.Config{AdminToken: lifecycle.Secret(strings.Repeat("x", 1025))}, []string{"AdminToken", "1025", "1024"}},
		"spaces": {lifecycle.Config{AdminToken: adminToken}, []string{"AdminToken", "byte 2"}},
	} {
		t.Run(name, func(t *testing.T) { wantErr(t, c.cfg.Validate(), nil, c.says...) })
	}
}

func TestSecretIsNotShown(t *testing.T) {
	cfg := lifecycle.Config{AdminToken: lifecycle.Secret(token)}
	var log syncBuffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", "cfg", cfg, "token", cfg.AdminToken)
	doc, err := json.Marshal(struct {
		lifecycle.Config
		Token lifecycle.Secret
	}{cfg, cfg.AdminToken})
	if err != nil {
		t.Fatal(err)
	}
	app, err := lifecycle.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(doc), fmt.Sprint(cfg, app, app.Config())}
	for _, verb := range "vsqxXdtcobeg" { // also verbs that do not fit a string
		for _, flag := range []string{"", "+", "#"} {
			format := "%" + flag + string(verb)
			shown = append(shown, fmt.Sprintf(format, cfg.AdminToken), fmt.Sprintf(format, cfg), fmt.Sprintf(format, app))
		}
	}
	for _, s := range shown {
		if strings.Contains(s, token) || strings.Contains(s, fmt.Sprintf("%x", token)) {
			t.Errorf("shows the token: %s", s)
		}
	}
	if s := fmt.Sprintf("%v %d %q", cfg.AdminToken, cfg.AdminToken, cfg.AdminToken); s != `[secret] [secret] "[secret]"` {
		t.Errorf("shown as %s", s)
	}
	if lifecycle.Secret("").String() != "" {
		t.Error("a secret and no secret look the same")
	}
}

func TestAppSuspendAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := adminRig(t, lifecycle.Config{})
		r.after(time.Second, func() {
			ready := func() string {
				code, body := get(r.Handler(), "/readyz")
				return fmt.Sprint(code, " ", body)
			}
			want := func(what string, says ...string) {
				t.Helper()
				for _, s := range says {
					if got := ready(); !strings.Contains(got, s) {
						t.Errorf("%s: /readyz is %s, want %q in it", what, got, s)
					}
				}
			}
			want("running", "200")
			r.Suspend("database moves")
			r.Suspend("database moves, part 2")
			want("suspended", "503", "suspended: database moves, part 2")
			if code, body := get(r.Handler(), "/livez"); code != 200 {
				t.Errorf("/livez is %d %s while suspended, want 200", code, body)
			}
			r.Resume()
			r.Resume()
			want("resumed", "200")

			if code, body := call(t.Context(), r.Handler(), http.MethodPost, "/admin/suspend?reason=a%0Ab%FF"); code != 200 {
				t.Errorf("POST suspend: %d %s", code, body)
			}
			want("suspended by request", "503", "suspended: a b\uFFFD")
			if code, _ := call(t.Context(), r.Handler(), http.MethodPost, "/admin/suspend?reason="+strings.Repeat("x", 5000)); code != http.StatusBadRequest {
				t.Errorf("an endless reason is answered with %d, want 400", code)
			}
			if code, body := call(t.Context(), r.Handler(), http.MethodPost, "/admin/resume"); code != 200 {
				t.Errorf("POST resume: %d %s", code, body)
			}
			want("resumed by request", "200")

			r.Stop(nil)
			r.Resume()
			want("draining: resume undoes no drain", "503", "draining")
		})
		if err := r.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
