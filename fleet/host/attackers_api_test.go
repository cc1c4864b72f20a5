package host_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// call is a request to the operators' API with the token of tenant evil.
type call struct {
	name, method, path, body string
	fill                     int64 // bytes in place of the body's @
	status                   int
	header                   [2]string
}

// applied returns the body of a request to apply a worker.
func applied(id, tenant, more string) string {
	code := base64.StdEncoding.EncodeToString([]byte("def handle(m): return m.text"))
	return fmt.Sprintf(`{"spec":{"id":%q,"tenant":%q,"mimeType":"text/x-starlark","topic":"work.own","code":{"content":%q}%s}}`,
		id, tenant, code, more)
}

const service = "/lifecycle.operator.v1.WorkerService/"

func attacksOnTheAPI(letter uint64) []call {
	code := `{"code":{"content":"` + base64.StdEncoding.EncodeToString([]byte("def handle(m): return 'evil'")) + `"}}`
	ofGood := fmt.Sprint(letter)
	return []call{
		// The neighbour's worker, by each method.
		{name: "look", method: "GET", path: "/workers/good", status: 404},
		{name: "state", method: "GET", path: "/workers/good/state", status: 404},
		{name: "log", method: "GET", path: "/workers/good/logs", status: 404},
		{name: "a log that is followed", method: "GET", path: "/watch/workers/good/logs", status: 404},
		{name: "history", method: "GET", path: "/workers/good/history", status: 404},
		{name: "code", method: "GET", path: "/workers/good/diff", status: 404},
		{name: "activity", method: "GET", path: "/workers/good/activity", status: 404},
		{name: "timers", method: "GET", path: "/workers/good/timers", status: 404},
		{name: "dead letters", method: "GET", path: "/workers/good/deadletters", status: 404},
		{name: "reasons of dead letters", method: "GET", path: "/workers/good/deadletter-groups", status: 404},
		{name: "a dead letter", method: "GET", path: "/workers/good/deadletters/" + ofGood, status: 404},
		{name: "stop", method: "POST", path: "/workers/good/stop", body: "{}", status: 404},
		{name: "start", method: "POST", path: "/workers/good/start", body: "{}", status: 404},
		{name: "new code", method: "POST", path: "/workers/good/code", body: code, status: 404},
		{name: "old code", method: "POST", path: "/workers/good/rollback", body: `{"digest":"sha256:` + strings.Repeat("0", 64) + `"}`, status: 404},
		{name: "a canary", method: "POST", path: "/workers/good/promote", body: "{}", status: 404},
		{name: "a test with its secrets", method: "POST", path: "/workers/good/test", body: "{}", status: 404},
		{name: "cancel a timer", method: "POST", path: "/workers/good/timers:cancel", body: `{"key":"work.good","name":"card"}`, status: 404},
		{name: "redrive", method: "POST", path: "/workers/good/deadletters:redrive", body: `{"all":true}`, status: 404},
		{name: "edit", method: "POST", path: "/workers/good/deadletters/" + ofGood + "/redrive", body: `{"data":"eA=="}`, status: 404},
		{name: "discard", method: "POST", path: "/workers/good/deadletters:discard", body: `{"all":true,"note":"x"}`, status: 404},
		{name: "delete", method: "DELETE", path: "/workers/good", status: 404},
		{name: "recover all", method: "POST", path: "/workers:recover", body: "{}", status: 403},
		// The same by other ways.
		{name: "by Connect", method: "POST", path: service + "ReadWorkerState", body: `{"id":"good"}`, status: 404},
		{name: "by a method that writes", method: "POST", path: service + "DeleteWorker", body: `{"id":"good"}`, status: 404},
		{
			name:   "by another method",
			method: "POST",
			path:   "/workers/good",
			body:   "{}",
			header: [2]string{"X-HTTP-Method-Override", "DELETE"},
			status: 405,
		},
		{name: "by a trace", method: "TRACE", path: "/workers/good", status: 405},
		{name: "by a path", method: "GET", path: "/workers/own/../good/state", status: 307},
		{name: "by an encoded path", method: "GET", path: "/workers/own%2F..%2Fgood/state", status: 404},
		{name: "by another case", method: "GET", path: "/workers/GOOD", status: 404},
		{name: "by a name with zero", method: "GET", path: "/workers/good%00", status: 400},
		{name: "by its page", method: "GET", path: "/ui/workers/good", status: 404},
		{name: "its letter by its own worker", method: "GET", path: "/workers/own/deadletters/" + ofGood, status: 404},
		{
			name:   "edit its letter by its own worker",
			method: "POST",
			path:   "/workers/own/deadletters/" + ofGood + "/redrive",
			body:   `{"data":"eA=="}`,
			status: 404,
		},
		{name: "list", method: "GET", path: "/workers?pageSize=500", status: 200},
		{name: "the audit", method: "GET", path: "/audit", status: 200},
		{name: "no token", method: "GET", path: "/workers", header: [2]string{"Authorization", ""}, status: 401},
		{
			name:   "a token in the URL",
			method: "GET",
			path:   "/workers?token=evil-0123456789-0123456789",
			header: [2]string{"Authorization", ""},
			status: 401,
		},
		{name: "another's name", method: "GET", path: "/workers/good", header: [2]string{"X-Remote-User", "admin"}, status: 404},
		// Workers that would be the neighbour's, or get what it has.
		{name: "apply its worker", method: "POST", path: "/workers:apply", body: applied("good", "evil", ""), status: 404},
		{name: "apply its worker as it is", method: "POST", path: "/workers:apply", body: applied("good", "good", ""), status: 403},
		{name: "a worker of its tenant", method: "POST", path: "/workers:apply", body: applied("thief", "good", `,"secrets":["CARD"]`), status: 403},
		{name: "a worker of no tenant", method: "POST", path: "/workers:apply", body: applied("thief", "", ""), status: 403},
		{
			name:   "create one of no tenant",
			method: "POST",
			path:   "/workers",
			body:   `{"id":"thief","mimeType":"text/x-starlark","topics":["work.good"],` + code[1:],
			status: 403,
		},
		{name: "its secret", method: "POST", path: "/workers:apply", body: applied("thief", "evil", `,"secrets":["CARD"]`), status: 400},
		{name: "another tenant for its own", method: "POST", path: "/workers:apply", body: applied("own", "good", ""), status: 403},
		{
			name:   "the state of all as a topic",
			method: "POST",
			path:   "/workers:apply",
			body:   strings.Replace(applied("thief", "evil", ""), "work.own", "$host.state.>", 1),
			status: 400,
		},
		{name: "code of a file", method: "POST", path: "/workers/own/code", body: `{"code":{"url":"file:///etc/passwd"}}`, status: 400},
		{
			name:   "code of the network",
			method: "POST",
			path:   "/workers/own/code",
			body:   `{"code":{"url":"http://169.254.169.254/latest"}}`,
			status: 400,
		},
		{name: "bad code", method: "POST", path: "/workers/own/code", body: `{"code":{"content":"KCgo"}}`, status: 400},
		{
			name:   "a version that it never had",
			method: "POST",
			path:   "/workers/own/rollback",
			body:   `{"digest":"sha256:` + strings.Repeat("0", 64) + `"}`,
			status: 404,
		},
		// Requests that are large, or none.
		{name: "a deep body", method: "POST", path: "/workers:apply", body: strings.Repeat(`{"spec":`, 100_000), status: 400},
		{name: "a large body", method: "POST", path: "/workers/own/code", body: `{"code":{"content":"@"}}`, fill: 64 << 20, status: 413},
		{name: "a large body without code", method: "POST", path: "/workers/own/stop", body: `{"id":"@"}`, fill: 8 << 20, status: 413},
		{
			name:   "a compressed body",
			method: "POST",
			path:   "/workers:apply",
			body:   zeros(256 << 20),
			header: [2]string{"Content-Encoding", "gzip"},
			status: 415,
		},
		{
			name:   "a body that is another type",
			method: "POST",
			path:   "/workers:apply",
			body:   "<x/>",
			header: [2]string{"Content-Type", "text/xml"},
			status: 415,
		},
		{name: "a field that does not exist", method: "POST", path: "/workers:apply", body: applied("own", "evil", `,"admin":true`), status: 400},
		{
			name:   "a number without end",
			method: "POST",
			path:   "/workers:apply",
			body:   applied("own", "evil", `,"limits":{"memory":`+strings.Repeat("9", 100_000)+"}"),
			status: 400,
		},
		{name: "half a character", method: "POST", path: "/workers:apply", body: applied("\xff", "evil", ""), status: 400},
		{
			name:   "names without end",
			method: "POST",
			path:   "/workers:apply",
			body:   applied("own", "evil", `,"env":["A"`+strings.Repeat(`,"A"`, 100_000)+"]"),
			status: 400,
		},
		{name: "a page without end", method: "GET", path: "/workers?pageSize=2147483647", status: 400},
		{name: "a page of its own", method: "GET", path: "/workers?pageToken=Z29vZA", status: 400},
		{name: "a page after another worker", method: "GET", path: "/workers?pageToken=YWZ0ZXIgZ29vZA", status: 200},
		{
			name:   "letters without end",
			method: "POST",
			path:   "/workers/own/deadletters:redrive",
			body:   `{"ids":["1"` + strings.Repeat(`,"1"`, 100_000) + "]}",
			status: 400,
		},
		{
			name:   "letters that are none",
			method: "POST",
			path:   "/workers/own/deadletters:discard",
			body:   `{"ids":["-1","18446744073709551616","x"],"note":"x"}`,
			status: 400,
		},
		{name: "a large header", method: "GET", path: "/workers", header: [2]string{"A", strings.Repeat("x", 1<<20)}, status: 431},
	}
}

// zeros returns bytes of zero, compressed.
func zeros(n int) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.CopyN(z, same(0), int64(n))
	_ = z.Close()
	return b.String()
}

// same reads one byte again and again.
type same byte

func (s same) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s)
	}
	return len(b), nil
}

// apiAttacks runs the attacks on the API of a host beside its neighbour. No answer has the card.
func apiAttacks(t *testing.T, r *rig, h *host.Host, card string, neighbour func(string)) {
	const token = "evil-0123456789-0123456789"
	path := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(path, []byte("operator evil "+token+" tenants=evil\n"), 0o600))
	quiet := slog.New(slog.DiscardHandler)
	auth, err := operator.TokenFile(path, quiet)
	must(t, err)
	server, err := operator.New(operator.Config{Workers: operator.FromHost(h), Auth: auth, Logger: quiet, Rate: 1e6, MaxBody: 8 << 20})
	must(t, err)
	s := httptest.NewUnstartedServer(nil)
	s.Config = server.HTTPServer()
	s.Start()
	defer s.Close()
	defer server.Close(t.Context())
	create(t, h, host.Spec{ID: "own", Tenant: "evil", Topic: "work.own", Code: prefix("")})
	for _, a := range attacksOnTheAPI(r.letters(h, "good", 1)[0].Seq) {
		t.Run("API: "+a.name, func(t *testing.T) {
			before, after, _ := strings.Cut(a.body, "@")
			body := io.MultiReader(strings.NewReader(before), io.LimitReader(same('A'), a.fill), strings.NewReader(after))
			req, err := http.NewRequestWithContext(t.Context(), a.method, s.URL+a.path, body)
			must(t, err)
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Content-Type", "application/json")
			if a.header[0] != "" {
				req.Header.Set(a.header[0], a.header[1])
			}
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Logf("%v", err)
			} else {
				defer resp.Body.Close()
				text, _ := io.ReadAll(resp.Body)
				if resp.StatusCode != a.status || strings.Contains(string(text), card) || len(text) > 1<<20 {
					t.Errorf("%d, want %d: %.300s", resp.StatusCode, a.status, text)
				}
				t.Logf("%d %.200s", resp.StatusCode, text)
			}
			neighbour("after the attack")
		})
	}
	must(t, h.Delete(t.Context(), "own"))
}
