package client

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// An answer without an end is an error, not all of the memory.
func TestAnswerWithoutAnEnd(t *testing.T) {
	before := maxAnswer
	maxAnswer = 1 << 20
	defer func() { maxAnswer = before }()
	junk := []byte(strings.Repeat("\x0a\x00", 1<<15))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		if strings.HasSuffix(r.URL.Path, "ListAudit") {
			w.WriteHeader(http.StatusBadRequest) // an error without an end
		}
		for range 1 << 10 { // 64 MiB
			if _, err := w.Write(junk); err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	c, err := New(Config{Server: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if me, err := c.Access.WhoAmI(t.Context(), &operatorv1.WhoAmIRequest{}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("an answer of 64 MiB: %v, %v", me, err)
	}
	if list, err := c.Access.ListAudit(t.Context(), &operatorv1.ListAuditRequest{}); err == nil {
		t.Errorf("an error of 64 MiB: %v", list)
	}
}
