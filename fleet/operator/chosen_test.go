package operator_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// pastProcesses are processes of which some have ended: the journal has their ends.
type pastProcesses struct {
	announced
	past []*operatorv1.Event
}

func (p pastProcesses) Events(_ context.Context, q presence.EventQuery) (list []*operatorv1.Event, next uint64, err error) {
	for _, e := range p.past {
		isOf := q.Process == "" || e.GetProcess() == q.Process || strings.HasSuffix(e.GetProcess(), "."+q.Process)
		if isOf && (q.Service == "" || e.GetService() == q.Service) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.GetKind())) {
			list = append(list, e)
		}
	}
	return list, 0, nil
}

// A diagnosis of one service, or of one process, has the processes that have ended too. A filter
// that matches nothing is an error that names what was probably meant.
func TestFilteredDiagnosis(t *testing.T) {
	area := pastProcesses{announced: announced{list: []*operatorv1.Process{
		{Id: "web.web-1", Service: "web", Phase: "running", Ready: true, Suspect: "a forged entry"},
		{Id: "shop.shop-1", Service: "shop", Phase: "running", Ready: true},
	}}}
	for service, process := range map[string]string{"checkout": "checkout.checkout-7", "web": "web.web-0", "web app": "web-app.a"} {
		area.past = append(area.past, &operatorv1.Event{
			Seq:     uint64(len(area.past) + 1),
			At:      timestamppb.Now(),
			Service: service,
			Process: process,
			Kind:    "lost",
			To:      presence.EndLost,
		})
	}
	base, _ := serve(t, operator.Config{Processes: area})
	for query, want := range map[string][]string{
		"service=checkout":            {"process/checkout.checkout-7"},
		"service=web":                 {"process/web.web-0", "process/web.web-1"},
		"service=web%20app":           {"process/web-app.a"},
		"service=shop":                {},
		"process=checkout.checkout-7": {"process/checkout.checkout-7"},
		"process=checkout-7":          {"process/checkout.checkout-7"},
		"process=web-1":               {"process/web.web-1"},
		"process=shop-1":              {},
	} {
		code, _, text := request(t, "GET", base+"/diagnosis?"+query, "")
		if code != http.StatusOK || strings.Count(text, `"subject"`) != len(want) {
			t.Errorf("%s: %d %s, want findings about %v", query, code, text, want)
		}
		wantText(t, query, text, want...)
	}
	for query, want := range map[string]string{
		"process=nosuch":      `there is no process`,
		"process=web-2":       `did you mean web-1?`,
		"process=shop.shop-2": `did you mean shop.shop-1?`,
		"service=wbe":         `did you mean web?`,
		"service=nosuch":      `there is no service`,
	} {
		code, _, text := request(t, "GET", base+"/diagnosis?"+query, "")
		if code != http.StatusNotFound {
			t.Errorf("%s: %d", query, code)
		}
		wantText(t, query, text, want)
	}
}

// A caller with a part of the fleet learns nothing of what it does not see, also from suggestions.
func TestFilteredDiagnosisOfAPart(t *testing.T) {
	area := newPartProcesses()
	base, _ := serve(t, operator.Config{Processes: area, Auth: scopedTo("payments-*")})
	for _, query := range []string{"service=shop-api", "service=shop-ap", "process=shop-1", "process=shop-api.shop-2"} {
		code, _, text := request(t, "GET", base+"/diagnosis?"+query, "")
		if code != http.StatusNotFound || strings.Contains(text, "did you mean") {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
	if code, _, text := request(t, "GET", base+"/diagnosis?process=payments-1", ""); code != http.StatusOK {
		t.Errorf("its own process: %d %s", code, text)
	}
}

// scopedTo is every caller's grant: the services that a pattern names.
type scopedTo string

func (p scopedTo) Authenticate(*http.Request) (operator.Principal, error) {
	grant := operator.Grant{Role: operator.RoleViewer, Services: []string{string(p)}}
	return operator.Principal{Name: "pia", Method: "token", Grants: []operator.Grant{grant}}, nil
}
