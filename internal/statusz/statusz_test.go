package statusz

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client can tell from the answer whether the operation was done.
func TestAdminEndpoints(t *testing.T) {
	var done []string
	tokenErr, preStopErr := error(nil), error(nil)
	h := Admin{
		Log:     slog.New(slog.DiscardHandler),
		Token:   func() (string, error) { return "0123456789abcdef", tokenErr },
		PreStop: func(context.Context) error { done = append(done, "prestop"); return preStopErr },
		Suspend: func(reason string) { done = append(done, "suspend "+reason) },
		Resume:  func() { done = append(done, "resume") },
	}.Handlers()
	ask := func(method, target, token string) (int, string) {
		t.Helper()
		done = nil
		w := httptest.NewRecorder()
		req := httptest.NewRequest(method, target, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+token)
		h[req.URL.Path].ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		method, target string
		code           int
		does           string
	}{
		{"GET", "/admin/prestop", 200, "prestop"}, {"POST", "/admin/prestop", 200, "prestop"}, {"PUT", "/admin/prestop", 405, ""},
		{"POST", "/admin/suspend?reason=a%0Ab%FF", 200, "suspend a b\uFFFD"}, {"POST", "/admin/suspend", 200, "suspend by an operator"},
		{"POST", "/admin/suspend?reason=" + strings.Repeat("x", 5000), 400, ""}, {"GET", "/admin/suspend", 405, ""},
		{"POST", "/admin/resume", 200, "resume"}, {"GET", "/admin/resume", 405, ""},
	} {
		if code, body := ask(c.method, c.target, "0123456789abcdef"); code != c.code || strings.Join(done, ", ") != c.does {
			t.Errorf("%s %.40s is %d %q and does %q, want %d and %q", c.method, c.target, code, body, done, c.code, c.does)
		}
		if code, _ := ask(c.method, c.target, "0123456789abcdeg"); code != http.StatusUnauthorized || done != nil {
			t.Errorf("%s %.40s with a wrong token is %d and does %q", c.method, c.target, code, done)
		}
	}
	preStopErr = context.Canceled
	if _, body := ask("GET", "/admin/prestop", "0123456789abcdef"); body != "" {
		t.Errorf("a caller that has disconnected gets %q", body)
	}
	tokenErr = errors.New("no file")
	if code, body := ask("POST", "/admin/resume", "0123456789abcdef"); code != http.StatusServiceUnavailable || done != nil || strings.Contains(body, "no file") {
		t.Errorf("without a token to compare with: %d %q, did %q", code, body, done)
	}
}
