package cli

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

func TestReasonsAreThoseOfTheServer(t *testing.T) {
	for ours, theirs := range map[string]string{
		reasonUnknownType: operator.ReasonUnknownType, reasonNotFound: operator.ReasonNotFound, reasonStale: operator.ReasonStale,
		reasonContention: operator.ReasonContention, reasonExpired: operator.ReasonExpired,
		reasonInvalid: operator.ReasonInvalidTransition, reasonNotWritable: operator.ReasonNotWritable,
	} {
		if ours != theirs {
			t.Errorf("%s is %s on the server", ours, theirs)
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	want := map[connect.Code]int{
		connect.CodeInvalidArgument: ExitUsage, connect.CodeOutOfRange: ExitUsage, connect.CodeNotFound: ExitNotFound,
		connect.CodeAborted: ExitConflict, connect.CodeAlreadyExists: ExitConflict,
		connect.CodeUnauthenticated: ExitDenied, connect.CodePermissionDenied: ExitDenied,
		connect.CodeUnavailable: ExitUnreachable, connect.CodeDeadlineExceeded: ExitUnreachable, connect.CodeResourceExhausted: ExitUnreachable,
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		expect, ok := want[code]
		if !ok {
			expect = ExitFindings
		}
		got := statusOf(code)
		isDescribed := false
		for _, s := range Statuses {
			isDescribed = isDescribed || s.Status == got
		}
		if got != expect || !isDescribed {
			t.Errorf("%v gives %d, want %d", code, got, expect)
		}
	}
}

func TestInvalidServers(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:8090": "http://localhost:8090", "[::1]:8090": "http://[::1]:8090", "ops.example.com": "https://ops.example.com", "https://ops.example.com/fleet/": "https://ops.example.com/fleet/",
	} {
		if u, err := parseServer(text); err != nil || u.String() != want {
			t.Errorf("%s is %v, %v, want %s", text, u, err, want)
		}
	}
	for _, text := range []string{"ftp://x", "http://", "http://ada:secret@x", "http://x?y=1", "http://[::1"} {
		if _, err := parseServer(text); err == nil || !strings.Contains(err.Error(), "want a URL such as") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
