package operator_test

import (
	"bufio"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// accessTable has a request of every method at a part of the fleet. A method whose request
// is nil has no object: "list" shows the caller its part, "fleet" needs the whole fleet.
var accessTable = map[string]struct {
	kind string
	at   func(part string) proto.Message
}{
	"ListDefinitions": {kind: "list"}, "ListWorkers": {kind: "list"}, "ListProcesses": {kind: "list"}, "WatchProcesses": {kind: "list"},
	"ListEvents": {kind: "list"}, "Diagnose": {kind: "list"}, "ListAudit": {kind: "list"}, "WhoAmI": {kind: "list"}, "RecoverWorkers": {kind: "fleet"},
	"GetDefinition": {at: func(p string) proto.Message { return &operatorv1.GetDefinitionRequest{Type: flowOf(p)} }},
	"ListEntities":  {at: func(p string) proto.Message { return &operatorv1.ListEntitiesRequest{Type: flowOf(p)} }},
	"GetEntity":     {at: func(p string) proto.Message { return &operatorv1.GetEntityRequest{Type: flowOf(p), Id: "m-00000"} }},
	"Transition": {at: func(p string) proto.Message {
		return &operatorv1.TransitionRequest{Type: flowOf(p), Id: "m-00000", Phase: "flying", DryRun: true}
	}},
	"Pause":  {at: func(p string) proto.Message { return &operatorv1.PauseRequest{Type: flowOf(p), Id: "m-00000"} }},
	"Resume": {at: func(p string) proto.Message { return &operatorv1.ResumeRequest{Type: flowOf(p), Id: "m-00000"} }},
	"Patch": {at: func(p string) proto.Message {
		return &operatorv1.PatchRequest{Type: flowOf(p), Id: "m-00000", DryRun: true, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{"priority": structpb.NewNumberValue(4)}}}
	}},
	"GetHistory": {at: func(p string) proto.Message { return &operatorv1.GetHistoryRequest{Type: flowOf(p), Id: "m-00000"} }},
	"Watch":      {at: func(p string) proto.Message { return &operatorv1.WatchRequest{Type: flowOf(p)} }},
	"GetProcess": {at: func(p string) proto.Message { return &operatorv1.GetProcessRequest{Id: p + "-api." + p + "-1"} }},
	"GetLogs":    {at: func(p string) proto.Message { return &operatorv1.GetLogsRequest{Id: p + "-api." + p + "-1"} }},
	"GetStacks":  {at: func(p string) proto.Message { return &operatorv1.GetStacksRequest{Id: p + "-api." + p + "-1"} }},
	"GetConfig":  {at: func(p string) proto.Message { return &operatorv1.GetConfigRequest{Id: p + "-api." + p + "-1"} }},
	"RestartUnit": {at: func(p string) proto.Message {
		return &operatorv1.RestartUnitRequest{Id: p + "-api." + p + "-1", Unit: "x"}
	}},
	"DrainProcess": {at: func(p string) proto.Message {
		return &operatorv1.DrainProcessRequest{Id: p + "-api." + p + "-1", Reason: "x"}
	}},
	"SuspendProcess": {at: func(p string) proto.Message { return &operatorv1.SuspendProcessRequest{Id: p + "-1", Reason: "x"} }}, // a short id
	"ResumeProcess":  {at: func(p string) proto.Message { return &operatorv1.ResumeProcessRequest{Id: p + "-api." + p + "-1"} }},
	"CreateWorker": {at: func(p string) proto.Message {
		return &operatorv1.CreateWorkerRequest{Id: p + "-new", MimeType: "text/x", Topics: []string{"x"}, Code: codeX}
	}},
	"ApplyWorker": {at: func(p string) proto.Message {
		return &operatorv1.ApplyWorkerRequest{Spec: &operatorv1.WorkerSpec{Id: p + "-mail", Tenant: p, MimeType: "text/x", Topic: "x", Code: codeX}, DryRun: true}
	}},
	"GetWorker":   {at: func(p string) proto.Message { return &operatorv1.GetWorkerRequest{Id: p + "-mail"} }},
	"StartWorker": {at: func(p string) proto.Message { return &operatorv1.StartWorkerRequest{Id: p + "-mail"} }},
	"StopWorker":  {at: func(p string) proto.Message { return &operatorv1.StopWorkerRequest{Id: p + "-mail"} }},
	"LoadCode":    {at: func(p string) proto.Message { return &operatorv1.LoadCodeRequest{Id: p + "-mail", Code: codeX} }},
	"Rollback": {at: func(p string) proto.Message {
		return &operatorv1.RollbackRequest{Id: p + "-mail", Digest: "sha256:" + strings.Repeat("a", 64)}
	}},
	"DeleteWorker":         {at: func(p string) proto.Message { return &operatorv1.DeleteWorkerRequest{Id: p + "-mail"} }},
	"GetWorkerHistory":     {at: func(p string) proto.Message { return &operatorv1.GetWorkerHistoryRequest{Id: p + "-mail"} }},
	"ListDeadLetters":      {at: func(p string) proto.Message { return &operatorv1.ListDeadLettersRequest{WorkerId: p + "-mail"} }},
	"Redrive":              {at: func(p string) proto.Message { return &operatorv1.RedriveRequest{WorkerId: p + "-mail", All: true} }},
	"ListDeadLetterGroups": {at: func(p string) proto.Message { return &operatorv1.ListDeadLetterGroupsRequest{WorkerId: p + "-mail"} }},
	"ReadDeadLetter":       {at: func(p string) proto.Message { return &operatorv1.ReadDeadLetterRequest{WorkerId: p + "-mail", Id: "1"} }},
	"RedriveEdited":        {at: func(p string) proto.Message { return &operatorv1.RedriveEditedRequest{WorkerId: p + "-mail", Id: "1"} }},
	"DiscardDeadLetters": {at: func(p string) proto.Message {
		return &operatorv1.DiscardDeadLettersRequest{WorkerId: p + "-mail", All: true, Note: "x"}
	}},
	"DiffWorkerCode":    {at: func(p string) proto.Message { return &operatorv1.DiffWorkerCodeRequest{Id: p + "-mail"} }},
	"GetWorkerActivity": {at: func(p string) proto.Message { return &operatorv1.GetWorkerActivityRequest{Id: p + "-mail"} }},
	"ReadWorkerLogs":    {at: func(p string) proto.Message { return &operatorv1.ReadWorkerLogsRequest{Id: p + "-mail"} }},
	"FollowWorkerLogs":  {at: func(p string) proto.Message { return &operatorv1.FollowWorkerLogsRequest{Id: p + "-mail"} }},
	"ReadWorkerState":   {at: func(p string) proto.Message { return &operatorv1.ReadWorkerStateRequest{Id: p + "-mail"} }},
	"PromoteWorker":     {at: func(p string) proto.Message { return &operatorv1.PromoteWorkerRequest{Id: p + "-mail"} }},
	"ListWorkerTimers":  {at: func(p string) proto.Message { return &operatorv1.ListWorkerTimersRequest{Id: p + "-mail"} }},
	"CancelWorkerTimer": {at: func(p string) proto.Message {
		return &operatorv1.CancelWorkerTimerRequest{Id: p + "-mail", Key: "x", Name: "x"}
	}},
	"TestWorker": {at: func(p string) proto.Message { return &operatorv1.TestWorkerRequest{Id: p + "-mail"} }},
}

var codeX = &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte("x")}}

func flowOf(part string) string {
	return map[string]string{"payments": "payments-refund", "shop": "shop-order"}[part]
}

// partCallers are callers with a role in the whole fleet, and in the part payments: by
// names, and of workers by the tenant.
var partCallers = []struct {
	name string
	role operator.Role
	part string
}{
	{"all-operator", operator.RoleOperator, ""}, {"all-viewer", operator.RoleViewer, ""},
	{"pay-operator", operator.RoleOperator, "payments"}, {"pay-inspector", operator.RoleInspector, "payments"}, {"pay-viewer", operator.RoleViewer, "payments"},
	{"pay-tenant", operator.RoleOperator, "tenant"},
}

func serveParts(t *testing.T) (base string) {
	t.Helper()
	text := ""
	for _, c := range partCallers {
		text += string(c.role) + " " + c.name + " " + partToken(c.name)
		switch c.part {
		case "payments":
			text += " services=payments-* workflows=payments-* workers=payments-*"
		case "tenant":
			text += " 2099-01-01T00:00:00Z tenants=payments"
		}
		text += "\n"
	}
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, text)
	auth, err := operator.TokenFile(path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	base, _ = serve(t, operator.Config{Workflows: partFlows{newMemory(2)}, Processes: newPartProcesses(), Workers: partWorkers{}, Auth: auth, Rate: 1e6})
	return base
}

func partToken(name string) string { return name + "-0123456789-0123456789" }

// Every method at every part of the fleet, for every role: what a caller may not see is not
// found, and what it sees without the role is refused.
func TestRolesByScope(t *testing.T) {
	base := serveParts(t)
	for _, m := range methods() {
		row, ok := accessTable[string(m.Name())]
		if !ok {
			t.Errorf("%s is not in the access table", m.Name())
			continue
		}
		need := operator.RoleOperator
		if inspects(m) {
			need = operator.RoleInspector
		} else if reads(m) {
			need = operator.RoleViewer
		}
		order := []operator.Role{operator.RoleViewer, operator.RoleInspector, operator.RoleOperator}
		for _, c := range partCallers {
			suffices := slices.Index(order, c.role) >= slices.Index(order, need)
			if row.at == nil {
				want := connect.Code(0)
				if !suffices || row.kind == "fleet" && c.part != "" {
					want = connect.CodePermissionDenied
				}
				for _, p := range protocols[2:] {
					if err := p.call(t, base, m, dynamicpb.NewMessage(m.Input()), partToken(c.name)); codeOf(err) != want {
						t.Errorf("%s %s by %s: %v, want %v", p.name, m.Name(), c.name, err, want)
					}
				}
				continue
			}
			for _, part := range []string{"payments", "shop"} {
				sees := c.part == "" || part == "payments" && (c.part == "payments" || m.Parent().Name() == "WorkerService" && m.Name() != "CreateWorker")
				want := connect.Code(0)
				switch {
				case !suffices:
					want = connect.CodePermissionDenied
				case !sees && (m.Name() == "CreateWorker" || m.Name() == "ApplyWorker"):
					want = connect.CodePermissionDenied
				case !sees:
					want = connect.CodeNotFound
				}
				for _, p := range protocols[2:] {
					if err := p.call(t, base, m, row.at(part), partToken(c.name)); codeOf(err) != want {
						t.Errorf("%s %s at %s by %s: %v, want %v", p.name, m.Name(), part, c.name, err, want)
					}
				}
			}
		}
	}
	// What is not there and what the caller does not see look the same.
	for _, path := range []string{"/processes/%s", "/workers/%s", "/definitions/%s"} {
		_, _, hidden := request(t, "GET", base+strings.Replace(path, "%s", "shop-api.shop-1", 1), "", bearer(partToken("pay-tenant"))...)
		_, _, none := request(t, "GET", base+strings.Replace(path, "%s", "none-api.1", 1), "", bearer(partToken("pay-tenant"))...)
		if strings.ReplaceAll(hidden, "shop-api.shop-1", "none-api.1") != none {
			t.Errorf("%s: hidden %s, missing %s", path, hidden, none)
		}
	}
}

func codeOf(err error) connect.Code {
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// A reason that no process takes is refused before a process is asked.
func TestReasonsThatNoProcessTakes(t *testing.T) {
	base, long := serveParts(t), strings.Repeat("x", 257)
	for verb, body := range map[string]string{
		"drain":        `{"reason":"` + long + `"}`,
		"suspend":      `{"reason":"` + long + `"}`,
		"restart-unit": `{"reason":"` + long + `","unit":"api"}`,
	} {
		code, _, text := request(t, "POST", base+"/processes/shop-api.shop-1/"+verb, body, bearer(partToken("all-operator"))...)
		if code != 400 || !strings.Contains(text, "has 257 bytes, at most 256 are allowed") {
			t.Errorf("%s: %d %s", verb, code, text)
		}
	}
}

// Lists, watches and pages have nothing of what the caller does not see.
func TestPartsOfTheFleet(t *testing.T) {
	base := serveParts(t)
	all, pay := bearer(partToken("all-operator")), bearer(partToken("pay-operator"))
	for _, id := range []string{"payments", "shop"} {
		if code, _, text := request(t, "POST", base+"/processes/"+id+"-api."+id+"-1/drain", `{"reason":"`+id+`"}`, all...); code != 200 {
			t.Fatalf("drain: %d %s", code, text)
		}
		if code, _, text := request(t, "POST", base+"/workers/"+id+"-mail/stop", `{}`, all...); code != 200 {
			t.Fatalf("stop: %d %s", code, text)
		}
	}
	request(t, "POST", base+"/workers/shop-mail/stop", `{}`, pay...) // refused, and its own
	html := append(slices.Clone(pay), "Accept", "text/html")
	for _, path := range []string{"/definitions", "/workers", "/processes", "/processes?contains=shop", "/events?page_size=2", "/diagnosis", "/ui/", "/ui/workflows", "/ui/workers", "/ui/events", "/ui/processes/payments-api.payments-1", "/ui/workers/payments-mail"} {
		header := pay
		if strings.HasPrefix(path, "/ui/") {
			header = html
		}
		code, _, text := request(t, "GET", base+path, "", header...)
		if code != 200 || strings.Contains(strings.ReplaceAll(text, `value="shop"`, ""), "shop") || !strings.Contains(text, "payments") && !strings.Contains(path, "contains=shop") {
			t.Errorf("%s: %d %s", path, code, text)
		}
		if _, _, text := request(t, "GET", base+path, "", append(slices.Clone(all), header[2:]...)...); !strings.Contains(text, "shop") && !strings.Contains(path, "payments") {
			t.Errorf("%s has no shop for a caller who sees it: %s", path, text)
		}
	}
	for name, want := range map[string]struct{ processes, workers, audits int }{"all-viewer": {2, 2, 5}, "pay-viewer": {1, 1, 2}, "pay-operator": {1, 1, 3}, "pay-tenant": {0, 1, 1}} {
		_, _, text := request(t, "GET", base+"/audit", "", bearer(partToken(name))...)
		if n := strings.Count(text, `"action":`); n != want.audits {
			t.Errorf("%s sees %d entries of the audit, want %d: %s", name, n, want.audits, text)
		}
		if n := watched(t, base, partToken(name)); n != want.processes {
			t.Errorf("%s watches %d processes, want %d", name, n, want.processes)
		}
	}
	// An attempt at a hidden process and one at none look the same, in the answer and in the audit.
	attempt := func(id string) string {
		_, _, answer := request(t, "POST", base+"/processes/"+id+"/drain", `{"reason":"x"}`, pay...)
		_, _, text := request(t, "GET", base+"/audit?pageSize=1", "", pay...)
		text = regexp.MustCompile(`"at":"[^"]*"|"remote":"[^"]*"|"nextPageToken":"[^"]*"`).ReplaceAllString(text, "")
		return strings.ReplaceAll(answer+text, id, "ID")
	}
	if hidden, none := attempt("shop-api.shop-1"), attempt("none-api.none-1"); hidden != none {
		t.Errorf("an attempt at a hidden process: %s\nat none: %s", hidden, none)
	}
	_, _, text := request(t, "GET", base+"/audit?pageSize=2", "", all...)
	wantText(t, "the audit of a caller who sees all", text, `"service":"shop-api"`)
	_, _, text = request(t, "GET", base+"/diagnosis", "", pay...)
	wantText(t, "a diagnosis of a part", text, `"lookedAt":["what you may see"]`)
	// Pages have buttons only for what the caller may do.
	for _, tc := range []struct {
		who, path, button string
		has               bool
	}{
		{"pay-operator", "/ui/processes/payments-api.payments-1", "/ui/act/drain", true}, {"pay-inspector", "/ui/processes/payments-api.payments-1", "/ui/act/drain", false},
		{"pay-inspector", "/ui/processes/payments-api.payments-1", "/logs", true}, {"pay-viewer", "/ui/processes/payments-api.payments-1", "/logs", false},
		{"pay-operator", "/ui/workers/payments-mail", "/ui/act/stop", true}, {"pay-viewer", "/ui/workers/payments-mail", "/ui/act/stop", false},
		{"pay-operator", "/ui/workers", "/ui/act/recover", false}, {"all-operator", "/ui/workers", "/ui/act/recover", true},
		{"pay-operator", "/ui/workflows/payments-refund/m-00000", "/ui/act/transition", true}, {"pay-viewer", "/ui/workflows/payments-refund/m-00000", "/ui/act/transition", false},
	} {
		code, _, text := request(t, "GET", base+tc.path, "", append(bearer(partToken(tc.who)), "Accept", "text/html")...)
		if code != 200 || strings.Contains(text, tc.button) != tc.has {
			t.Errorf("%s of %s: %d, has %s: %v", tc.path, tc.who, code, tc.button, !tc.has)
		}
	}
	for path, want := range map[string]int{
		"/ui/act/drain?id=payments-api.payments-1":                   200,
		"/ui/act/drain?id=shop-api.shop-1":                           404,
		"/ui/act/recover":                                            403,
		"/ui/act/recover?id=payments-mail":                           403,
		"/ui/act/transition?type=shop-order&id=m-00000&phase=flying": 404,
	} {
		if code, _, text := request(t, "GET", base+path, "", html...); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, text)
		}
	}
	// Names of workers are not a tenant: what that is granted, its secrets, would come with it.
	for tenant, want := range map[string]int{"shop": 403, "payments": 403, "": 200} {
		body := `{"spec":{"id":"payments-new","tenant":"` + tenant + `","mimeType":"text/x","topic":"x","code":{"content":"eA=="}},"dryRun":true}`
		if code, _, text := request(t, "POST", base+"/workers:apply", body, bearer(partToken("pay-operator"))...); code != want {
			t.Errorf("a new worker of the tenant %q: %d %s", tenant, code, text)
		}
	}
	// A tenant takes no worker of another, and gives none away.
	for id, tenant := range map[string]string{"shop-mail": "payments", "payments-mail": "shop"} {
		body := `{"spec":{"id":"` + id + `","tenant":"` + tenant + `","mimeType":"text/x","topic":"x","code":{"content":"eA=="}}}`
		if code, _, text := request(t, "POST", base+"/workers:apply", body, bearer(partToken("pay-tenant"))...); code == 200 {
			t.Errorf("%s for %s: %d %s", id, tenant, code, text)
		}
	}
	_, _, text = request(t, "GET", base+"/whoami", "", pay...)
	wantText(t, "whoami", text, `"name":"pay-operator"`, `"grants":[{"role":"operator"`, `"services":["payments-*"]`)
}

// watched returns how many processes a watch begins with.
func watched(t *testing.T, base, token string) (n int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/watch/processes", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan() && lines.Text() != "event: synced"; {
		if lines.Text() == "event: put" {
			n++
		}
	}
	return n
}

func TestGrantsThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"viewer ada " + adaToken + " services=":                       "services has no name",
		"viewer ada " + adaToken + " services=a,,b":                   "services has no name",
		"viewer ada " + adaToken + " service=a":                       `has "service="`,
		"viewer ada " + adaToken + " services=a services=b":           "services= twice",
		"viewer ada " + adaToken + " 2020-01-01T00:00:00Z x tenants=": "5 words",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		write(t, path, text)
		if _, err := operator.TokenFile(path, quiet); err == nil || (!strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "tenants has no name")) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	good := operator.Grant{Subject: "group:ops", Role: operator.RoleViewer}
	for _, change := range []func(*operator.Grant){
		func(g *operator.Grant) { g.Subject = "ops" }, func(g *operator.Grant) { g.Subject = "team:ops" }, func(g *operator.Grant) { g.Subject = "user:" },
		func(g *operator.Grant) { g.Role = "king" }, func(g *operator.Grant) { g.Services = []string{} }, func(g *operator.Grant) { g.Tenants = []string{""} },
	} {
		g := good
		change(&g)
		if _, err := operator.OIDC(operator.OIDCConfig{Issuer: "https://id.example.com", ClientID: "x", Grants: []operator.Grant{g}}); err == nil {
			t.Errorf("%+v was accepted", g)
		}
	}
}
