package upgrade

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The command ends as the process answers, and says what to do.
func TestAnswersOfTheProcess(t *testing.T) {
	status, body := http.StatusOK, ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodPost || req.URL.Path != "/admin/upgrade" || req.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s with %q", req.Method, req.URL, req.Header.Get("Authorization"))
		}
		w.WriteHeader(status)
		fmt.Fprintln(w, body)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(two, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		status int
		body   string
		args   []string
		exit   int
		says   string
	}{
		{200, "upgraded: process 12 serves", nil, cli.ExitOK, "upgraded: process 12 serves"},
		{200, "upgraded: process 12 serves\x1b[2J", nil, cli.ExitOK, `upgraded: process 12 serves\u001b[2J`},
		{200, "the shop's front page", nil, cli.ExitNotFound, "is not the health address of a process: nothing was upgraded"},
		{409, "it ended before it said \"ready\"", nil, cli.ExitConflict, "it ended before it said"},
		{401, "unauthorized", nil, cli.ExitDenied, "answers 401 Unauthorized"},
		{404, "", nil, cli.ExitNotFound, "answers 404 Not Found"},
		{503, "the admin token cannot be read", nil, cli.ExitUnreachable, "503 Service Unavailable: the admin token cannot be read"},
		{200, "", []string{"http://127.0.0.1:1"}, cli.ExitUnreachable, "connection refused"},
		{200, "", []string{"127.0.0.1:8081"}, cli.ExitUsage, "is not the address of a process: want http://127.0.0.1:8081"},
		{200, "", []string{"http://127.0.0.1:8081/admin/upgrade"}, cli.ExitUsage, "is not the address of a process"},
		{200, "", []string{"http://127.0.0.1:1", "--admin-token-file=/no/such/file"}, cli.ExitUsage, "no such file"},
		{200, "", []string{"http://127.0.0.1:1", "--admin-token-file=" + two}, cli.ExitUsage, "want the admin token alone"},
		{200, "", []string{"http://127.0.0.1:1", "--admin-token-file="}, cli.ExitUsage, "in --admin-token-file or LIFECYCLECTL_ADMIN_TOKEN, have 0 words"},
	} {
		status, body = test.status, test.body
		args := test.args
		if args == nil {
			args = []string{srv.URL}
		}
		cmd, out := Command(), new(bytes.Buffer)
		cmd.SetArgs(append([]string{"--admin-token-file=" + file}, args...))
		cmd.SetOut(out)
		cmd.SetErr(new(bytes.Buffer))
		err := cmd.ExecuteContext(t.Context())
		if err != nil {
			out.WriteString(err.Error())
		}
		if got := cli.StatusOf(err); got != test.exit || !strings.Contains(out.String(), test.says) {
			t.Errorf("%d %s %v: exit status %d, %q; want %d, %q", test.status, test.body, args, got, out, test.exit, test.says)
		}
	}
}
