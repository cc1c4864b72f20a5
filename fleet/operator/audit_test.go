package operator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func auditOf(t *testing.T, url, query string) *operatorv1.ListAuditResponse {
	t.Helper()
	code, _, text := request(t, "GET", url+"/audit?"+query, "")
	list := new(operatorv1.ListAuditResponse)
	if err := protojson.Unmarshal([]byte(text), list); code != 200 || err != nil {
		t.Fatalf("audit?%s: %d %s", query, code, text)
	}
	return list
}

// A page that asks what to do writes nothing into the audit.
func TestAskingIsNotAudited(t *testing.T) {
	url, _ := serve(t, operator.Config{Workflows: newMemory(1)})
	ask := url + "/ui/act/transition?type=drone-survey&id=m-00000&phase=flying"
	if code, _, text := request(t, "GET", ask, ""); code != 200 || !strings.Contains(text, "What will happen") {
		t.Fatalf("%d %s", code, text)
	}
	if n := len(auditOf(t, url, "").GetEntries()); n != 0 {
		t.Errorf("opening a page made %d entries", n)
	}
	if code, _, _ := request(t, "GET", ask, "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"); code != 200 {
		t.Errorf("a link on another site: %d", code)
	}
	// A dry run through the API is an attempt, as before.
	request(t, "POST", url+restMove, `{"phase":"flying","dryRun":true}`)
	if n := len(auditOf(t, url, "").GetEntries()); n != 1 {
		t.Errorf("%d entries after a dry run", n)
	}
}

// The audit in a stream outlives its server, is shared by replicas, and has filters and
// pages. The one in memory has the same filters and pages.
func TestAuditLog(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	durable := func() operator.AuditLog {
		log, err := operator.OpenAuditLog(t.Context(), js, operator.AuditLogConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return log
	}
	for name, log := range map[string]operator.AuditLog{"stream": durable(), "memory": nil} {
		url, _ := serve(t, operator.Config{Workflows: newMemory(5), AuditLog: log, Rate: 1e6})
		for i := range 5 {
			for _, phase := range []string{"flying", "completed"} { // the second is refused
				request(t, "POST", fmt.Sprintf("%s/workflows/drone-survey/m-%05d/transition", url, i), `{"phase":"`+phase+`"}`)
			}
		}
		if name == "stream" { // another replica, and this server's successor
			url, _ = serve(t, operator.Config{AuditLog: durable()})
		}
		if n := len(auditOf(t, url, "").GetEntries()); n != 10 {
			t.Errorf("%s: %d entries", name, n)
		}
		if list := auditOf(t, url, "refused=true&target=M-00003").GetEntries(); len(list) != 1 || !strings.Contains(list[0].GetOutcome(), "failed_precondition") {
			t.Errorf("%s: filtered: %v", name, list)
		}
		if n := len(auditOf(t, url, "until="+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)).GetEntries()); n != 0 {
			t.Errorf("%s: %d entries of an hour ago", name, n)
		}
		var all []*operatorv1.AuditEntry
		for token := ""; ; {
			page := auditOf(t, url, "pageSize=3&action=transition&pageToken="+token)
			all = append(all, page.GetEntries()...)
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		seen := map[string]bool{}
		for i, e := range all {
			seen[e.GetTarget()+e.GetDetail()] = true
			if i > 0 && e.GetAt().AsTime().After(all[i-1].GetAt().AsTime()) {
				t.Errorf("%s: entry %d is newer than the one before", name, i)
			}
		}
		if len(all) != 10 || len(seen) != 10 {
			t.Errorf("%s: %d entries on all pages, %d different", name, len(all), len(seen))
		}
	}
}

// A server without room for the log says which setting makes it smaller.
func TestAuditLogOnASmallDisk(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{MaxStore: 64 << 20})
	_, err := operator.OpenAuditLog(t.Context(), b.JetStream(), operator.AuditLogConfig{})
	if err == nil || !strings.Contains(err.Error(), "stream FLEET_AUDIT reserves 1024 MiB") || !strings.Contains(err.Error(), "AuditLogConfig.MaxBytes") {
		t.Errorf("the error is %v", err)
	}
	if _, err := operator.OpenAuditLog(t.Context(), b.JetStream(), operator.AuditLogConfig{MaxBytes: 8 << 20}); err != nil {
		t.Error(err)
	}
}
