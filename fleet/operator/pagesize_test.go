package operator_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// throng returns a large fleet in which something is wrong with every process.
func throng(n, services int) []*operatorv1.Process {
	now := timestamppb.Now()
	list := make([]*operatorv1.Process, n)
	for i := range list {
		service := fmt.Sprintf("orders-api-%03d", i%services)
		id := fmt.Sprintf("%s.%s-7d4b9c8f6-%05d", service, service, i)
		list[i] = &operatorv1.Process{
			Id: id, Service: service, Host: id, Pid: int32(i), Version: "v1.24.3-9-g5c7ef9d", Phase: "running", StartedAt: now, SeenAt: now, Suspect: "another client has written its entry: it has no signature",
			Counts:   &operatorv1.UnitCounts{All: 12, Running: 11, Failed: 1, Restarts: 1234},
			Findings: []*operatorv1.Finding{{Rule: "crash-loop", Severity: "error", Subject: "process/" + id, Cause: fmt.Sprintf("unit poller was started again %d times within 5m0s; its last run ended with: dial tcp 10.0.0.%d:5432: connect: connection refused", i, i)}},
			Probes:   []*operatorv1.Probe{{Name: "db", Plane: "readiness", State: "down", Critical: true, Error: fmt.Sprintf("dial tcp 10.0.0.%d:5432: connect: connection refused", i), Since: now}},
		}
	}
	return list
}

// The front page stays small, also when the fleet is large and something is wrong with all
// of it: a browser gets at most 50 kB.
func TestFrontPageOfALargeFleetIsSmall(t *testing.T) {
	base, _ := serve(t, operator.Config{Processes: announced{list: throng(2000, 400)}, Timeout: time.Minute})
	for _, path := range []string{"/ui/", "/ui/?sort=service", "/ui/?service=orders-api-007"} {
		req, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip, br")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		sent, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Fatalf("%s: %d %v %v", path, resp.StatusCode, resp.Header, err)
		}
		z, err := gzip.NewReader(strings.NewReader(string(sent)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		wantText(t, path, string(text), "things are wrong", "crash-loop", "smaller services")
		if len(sent) > 50_000 || len(text) > 250_000 {
			t.Errorf("%s: %d bytes are sent for %d", path, len(sent), len(text))
		}
		t.Logf("%s: %d bytes are sent for %d", path, len(sent), len(text))
	}
	// A caller that does not take gzip gets the page as it is.
	for _, header := range []string{"", "identity", "gzip;q=0", "br;q=1.0, gzip; q=0.0"} {
		code, h, text := request(t, "GET", base+"/ui/", "", "Accept-Encoding", header)
		if code != 200 || h.Get("Content-Encoding") != "" || !strings.Contains(text, "<h1>Fleet</h1>") {
			t.Errorf("%q: %d %v", header, code, h)
		}
	}
}

// What a client got wrong in a query is 400, and the answer says what, where, and what would be right.
func TestQueriesThatAreWrong(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(2), Workers: newHosted(), Processes: newCommanded()})
	get := "/lifecycle.operator.v1.WorkflowService/ListEntities?connect=v1&encoding=json&base64=1&message="
	for path, want := range map[string]string{
		get + "!!!":                              "message is not base64",
		"/events?since=x":                        `is \"x\", want a time of RFC 3339, such as 2030-01-31T12:00:00Z`,
		"/audit?until=yesterday":                 `is \"yesterday\", want a time of RFC 3339`,
		"/workflows/drone-survey?updatedAfter=x": `is \"x\", want a time of RFC 3339`,
	} {
		code, _, text := request(t, "GET", base+path, "")
		if code != 400 || !strings.Contains(text, want) || !strings.Contains(text, operator.ReasonMalformed) && !strings.HasPrefix(path, get) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, list := range []string{
		"/processes", "/workers", "/workflows/drone-survey", "/events", "/audit",
		"/workers/notify/deadletters", "/workers/notify/state", "/workers/notify/timers", "/workers/notify/logs",
	} {
		for _, forged := range []string{"forged", "AAAA", "!"} {
			code, _, text := request(t, "GET", base+list+"?pageToken="+forged, "")
			if code != 400 || !strings.Contains(text, "is not a next_page_token of this server") {
				t.Errorf("%s with the page token %s: %d %s", list, forged, code, text)
			}
		}
	}
}
