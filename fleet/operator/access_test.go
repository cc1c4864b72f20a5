package operator_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

const (
	adaToken = "ada-0123456789-0123456789"
	vicToken = "vic-0123456789-0123456789"
	ivyToken = "ivy-0123456789-0123456789"
	oldToken = "old-0123456789-0123456789"
)

func tokenFile(t testing.TB) (path string, auth operator.Authenticator) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens")
	sum := sha256.Sum256([]byte(vicToken))
	write(t, path, "# who may\noperator ada "+adaToken+"\ninspector ivy "+ivyToken+"\nviewer vic sha256:"+hex.EncodeToString(sum[:])+"\noperator old "+oldToken+" 2020-01-01T00:00:00Z\n")
	auth, err := operator.TokenFile(path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return path, auth
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

func TestNothingIsServedWithoutCredentials(t *testing.T) {
	for _, addr := range []string{":8090", "0.0.0.0:8090", "10.0.0.1:8090", "[::]:8090", "example.com:80"} {
		if _, err := operator.New(operator.Config{Addr: addr, Logger: quiet}); err == nil || !strings.Contains(err.Error(), "no Auth") {
			t.Errorf("%s without Auth: %v", addr, err)
		}
	}
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	for _, path := range []string{
		"/definitions", "/workflows/drone-survey", "/openapi.json", "/watch/workflows/drone-survey", "/nothing",
		"/grpc.health.v1.Health/Check", "/lifecycle.operator.v1.WorkflowService/ListDefinitions",
	} {
		for what, header := range map[string][]string{
			"missing": nil, "forged": bearer("eve-0123456789-0123456789"), "basic": {"Authorization", "Basic YTpi"}, "empty": {"Authorization", "Bearer "},
		} {
			code, h, text := request(t, "GET", base+path, "", header...)
			// After twenty guesses the address has to wait; that answer reveals
			// nothing either.
			if code != http.StatusTooManyRequests && (code != http.StatusUnauthorized || h.Get("WWW-Authenticate") == "") {
				t.Errorf("%s with %s credentials: %d %s", path, what, code, text)
			}
			if strings.Contains(text, "planning") {
				t.Errorf("%s with %s credentials tells %s", path, what, text)
			}
		}
	}
}

func TestRolesAndAudit(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	path := base + "/workflows/drone-survey/m-00000"
	code, _, text := request(t, "GET", base+"/whoami", "", bearer(vicToken)...)
	wantText(t, "whoami", text, `"name":"vic"`, `"role":"viewer"`, `"method":"token"`)
	if code != 200 {
		t.Error(code)
	}
	if code, _, _ := request(t, "GET", path, "", bearer(vicToken)...); code != 200 {
		t.Errorf("a viewer reads: %d", code)
	}
	code, _, text = request(t, "POST", path+"/transition", `{"phase":"flying"}`, bearer(vicToken)...)
	if code != 403 || !strings.Contains(text, operator.ReasonForbidden) {
		t.Errorf("a viewer writes: %d %s", code, text)
	}
	code, _, text = request(t, "GET", path, "", bearer(oldToken)...)
	if code != 401 || !strings.Contains(text, operator.ReasonExpired) {
		t.Errorf("an expired token: %d %s", code, text)
	}
	if code, _, text := request(t, "POST", path+"/transition", `{"phase":"flying","note":"go"}`, bearer(adaToken)...); code != 200 {
		t.Errorf("an operator writes: %d %s", code, text)
	}
	if code, _, _ := request(t, "POST", path+"/transition", `{"phase":"planning"}`, bearer(adaToken)...); code != 400 {
		t.Errorf("an impossible transition: %d", code)
	}
	_, _, text = request(t, "GET", base+"/audit", "", bearer(vicToken)...)
	var list struct {
		Entries []struct{ Who, Role, Action, Target, Detail, Outcome, Remote string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Entries) != 3 {
		t.Fatalf("audit: %v %s", err, text)
	}
	if e := list.Entries[2]; e.Who != "vic" || !strings.HasPrefix(e.Outcome, "permission_denied") || e.Remote == "" {
		t.Errorf("the viewer's attempt: %+v", e)
	}
	if e := list.Entries[1]; e.Who != "ada" || e.Action != "WorkflowService.Transition" || e.Target != "drone-survey/m-00000" || e.Detail != "to flying: go" || e.Outcome != "ok" {
		t.Errorf("the operator's transition: %+v", e)
	}
	if e := list.Entries[0]; !strings.HasPrefix(e.Outcome, "failed_precondition") {
		t.Errorf("the refused attempt: %+v", e)
	}
}

// Every method of the contract that may change something needs the role operator.
func TestEveryWriteNeedsAnOperator(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Auth: auth})
	writes := 0
	for _, m := range methods() {
		if m.IsStreamingServer() {
			continue
		}
		code, _, text := request(t, "POST", base+"/"+string(m.Parent().FullName())+"/"+string(m.Name()), "{}", bearer(vicToken)...)
		if forbidden := code == 403 && strings.Contains(text, "permission_denied"); forbidden == reads(m) {
			t.Errorf("a viewer calls %s: %d %s", m.Name(), code, text)
		}
		if !reads(m) {
			writes++
		}
	}
	if writes < 13 {
		t.Errorf("only %d methods write", writes)
	}
}

func TestForeignHostsAndOrigins(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Hosts: []string{"ops.example.com"}})
	path := base + "/workflows/drone-survey/m-00000"
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "localhost:1234": 200, "[::1]:80": 200, "ops.example.com": 200, "OPS.example.com:443": 200,
		"evil.example": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "10.0.0.1": 403,
	} {
		header := []string{"Host", host}
		if host == "" {
			header = nil
		}
		if code, _, text := request(t, "GET", path, "", header...); code != want {
			t.Errorf("Host %q: %d, want %d: %s", host, code, want, text)
		}
	}
	for what, header := range map[string][]string{
		"another site": {"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, "a neighbour": {"Sec-Fetch-Site", "same-site"}, "an old browser": {"Origin", "https://evil.example"},
	} {
		for _, target := range []string{path + "/transition", base + "/ui/act/transition", base + "/lifecycle.operator.v1.WorkflowService/Transition"} {
			if code, _, text := request(t, "POST", target, `{"phase":"flying"}`, header...); code != 403 {
				t.Errorf("%s posts to %s: %d %s", what, target, code, text)
			}
		}
	}
	for _, name := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
		if code, _, text := request(t, "GET", path, "", name, "1.1 203.0.113.7"); code != 401 {
			t.Errorf("with the header %s of a proxy: %d %s", name, code, text)
		}
	}
	if code, _, text := request(t, "GET", path, "", "X-Forwarded-For", "203.0.113.7"); code != 401 {
		t.Errorf("forwarded for another caller: %d %s", code, text)
	}
	if _, h, _ := request(t, "GET", path, ""); h.Get("Access-Control-Allow-Origin") != "" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
		t.Errorf("headers let others read: %v", h)
	}
}

func TestLimitsOfRate(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth, Rate: 2})
	limited := 0
	for range 30 {
		code, h, _ := request(t, "GET", base+"/whoami", "", bearer(vicToken)...)
		if code == 429 {
			limited++
			if h.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
	}
	if limited == 0 {
		t.Error("30 requests at once with a rate of 2 were all served")
	}
	if code, _, _ := request(t, "GET", base+"/whoami", "", bearer(adaToken)...); code != 200 {
		t.Errorf("another caller: %d", code)
	}
	for range 60 {
		code, _, _ := request(t, "GET", base+"/whoami", "", bearer("guess-0123456789-0123456789")...)
		if code != 401 {
			t.Fatalf("a guess: %d", code)
		}
	}
	if code, _, _ := request(t, "GET", base+"/whoami", "", bearer(ivyToken)...); code != 200 {
		t.Errorf("guesses from the same address lock out a caller with valid credentials: %d", code)
	}
}

// byHeader is a caller whose name and method of sign-in the request has.
type byHeader struct{}

func (byHeader) Authenticate(r *http.Request) (operator.Principal, error) {
	return operator.Principal{Name: "ada", Method: r.Header.Get("Method"), Role: operator.RoleViewer}, nil
}

// Two ways to sign in may know the same name: each of the callers has a quota of its own.
func TestBudgetsAreOfANameAndItsMethod(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: byHeader{}, Rate: 0.01})
	if code, _, _ := request(t, "GET", base+"/whoami", "", "Method", "token"); code != 200 {
		t.Fatalf("the first request: %d", code)
	}
	if code, _, _ := request(t, "GET", base+"/whoami", "", "Method", "token"); code != 429 {
		t.Fatalf("the second request: %d", code)
	}
	if code, _, _ := request(t, "GET", base+"/whoami", "", "Method", "oidc"); code != 200 {
		t.Errorf("another caller of that name: %d", code)
	}
}

// A large login form is refused before the caller is authenticated.
func TestFormOfALoginIsSmall(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Auth: auth})
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	code, h, _ := request(t, "POST", base+"/ui/login", "token="+adaToken+"&next=/ui/&more="+strings.Repeat("x", 1<<20), form...)
	if code != 400 || h.Get("Set-Cookie") != "" {
		t.Errorf("a form of 1 MiB: %d", code)
	}
	if code, _, _ := request(t, "POST", base+"/ui/login", "token="+strings.Repeat("x", 20<<10), form...); code != 401 {
		t.Errorf("a token of 20 KiB: %d", code)
	}
}

// makers is an area that chooses the ids of new objects.
type makers struct{ operator.Workers }

func (makers) Create(context.Context, *operatorv1.CreateWorkerRequest, string) (*operatorv1.Worker, error) {
	return &operatorv1.Worker{Id: "made-up"}, nil
}

func TestAuditHasTheIdThatWasMadeUp(t *testing.T) {
	base, _ := serve(t, operator.Config{Workers: makers{}})
	code, _, text := request(t, "POST", base+"/workers", `{"mimeType":"text/x-starlark","topics":["a"],"code":{"content":"eA=="}}`)
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	_, _, text = request(t, "GET", base+"/audit", "")
	wantText(t, "audit", text, `"target":"worker/made-up"`)
}

func TestLimitOfStreams(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), MaxStreams: 3, MaxStreamAge: time.Minute}) // bounds a watch that is accepted by mistake
	var open []*http.Response
	for range 3 {
		resp, err := http.Get(base + "/watch/workflows/drone-survey")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		bufio.NewReader(resp.Body).ReadString('\n')
		open = append(open, resp)
	}
	code, _, text := request(t, "GET", base+"/watch/workflows/drone-survey", "")
	if code != 429 || !strings.Contains(text, operator.ReasonTooManyStreams) {
		t.Errorf("the fourth: %d %s", code, text)
	}
	open[0].Body.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until the server notices
		resp, err := http.Get(base + "/watch/workflows/drone-survey")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the place of an ended watch is not free again")
		}
	}
}

// A watch ends as soon as a request of its caller would be refused, or would have another role.
func TestStreamEndsWithItsCaller(t *testing.T) {
	good := "viewer vic " + vicToken + "\n"
	for what, c := range map[string]struct{ file, reason string }{
		"the token is gone":      {"operator ada " + adaToken + "\n", operator.ReasonUnauthenticated},
		"the file is broken":     {"nonsense\n", operator.ReasonUnavailable},
		"the role is another":    {"operator vic " + vicToken + "\n", operator.ReasonStreamOver},
		"the grant is for parts": {"viewer vic " + vicToken + " workflows=no-*\n", operator.ReasonStreamOver},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path, auth := tokenFile(t)
			write(t, path, good)
			base, _ := serve(t, operator.Config{Workflows: newMemory(2), Auth: auth})
			ctx, info := connect.NewClientContext(t.Context())
			info.RequestHeader().Set("Authorization", "Bearer "+vicToken)
			var watches []*connect.ServerStreamForClient[operatorv1.WatchResponse]
			for _, protocol := range []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()} {
				client := operatorv1connect.NewWorkflowServiceClient(h2c(t), base, protocol)
				watch, err := client.Watch(ctx, &operatorv1.WatchRequest{Type: "drone-survey"})
				if err != nil || !watch.Receive() {
					t.Fatal(err, watch.Err())
				}
				watches = append(watches, watch)
			}
			get, _ := http.NewRequest("GET", base+"/watch/workflows/drone-survey", nil)
			get.Header.Set("Authorization", "Bearer "+vicToken)
			events, err := http.DefaultClient.Do(get)
			if err != nil || events.StatusCode != http.StatusOK {
				t.Fatal(err, events)
			}
			defer events.Body.Close()
			write(t, path, c.file)
			for _, watch := range watches {
				for watch.Receive() {
				}
				if got := client.Reason(watch.Err()); got != c.reason {
					t.Errorf("the watch ended with %q, want %q: %v", got, c.reason, watch.Err())
				}
			}
			text, _ := io.ReadAll(events.Body)
			wantText(t, "the events", string(text), "event: put\ndata: {", "event: error\ndata: {", c.reason)
		})
	}
}

func TestStreamEndsWithItsAge(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(2), MaxStreamAge: 6 * time.Second})
	code, h, text := request(t, "GET", base+"/watch/workflows/drone-survey", "")
	if code != 200 || h.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %v", code, h)
	}
	wantText(t, "the events", text, "event: put\ndata: {", "event: synced\n", "event: error\ndata: {", operator.ReasonStreamOver)
	c := operatorv1connect.NewWorkflowServiceClient(h2c(t), base, connect.WithGRPC())
	watch, err := c.Watch(t.Context(), &operatorv1.WatchRequest{Type: "drone-survey"})
	if err != nil {
		t.Fatal(err)
	}
	for watch.Receive() {
	}
	wantError(t, watch.Err(), connect.CodeUnavailable, operator.ReasonStreamOver, "")
}
