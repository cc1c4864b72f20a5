package httpcode_test

import (
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every code has an error status, and Code maps each status to a code whose
// status has the same class.
func TestEveryCodeIsAnErrorStatus(t *testing.T) {
	for c := connect.CodeCanceled; c <= connect.CodeUnauthenticated; c++ {
		if s := httpcode.Of(c); s < 400 || s > 599 {
			t.Errorf("%v is %d", c, s)
		}
	}
	for _, s := range []int{http.StatusBadRequest, http.StatusNotFound, http.StatusNotImplemented, http.StatusForbidden} {
		if got := httpcode.Of(httpcode.Code(s)); got != s {
			t.Errorf("%d comes back as %d", s, got)
		}
	}
	if c := httpcode.Code(http.StatusTeapot); c != connect.CodeUnknown {
		t.Errorf("an unexpected status is %v", c)
	}
}
