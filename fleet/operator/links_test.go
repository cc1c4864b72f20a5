package operator_test

import (
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// A link that runs a script, leads nowhere or has an unknown field is refused at the start.
func TestLinksAreChecked(t *testing.T) {
	for url, want := range map[string]string{
		"https://grafana.example.com/d/x?var-service={service}&var-pod={host}": "",
		"javascript:alert(1)//{service}":                                       "want http://",
		"/d/x?var-service={service}":                                           "want http://",
		"https://{host}/":                                                      "",
		"https://grafana.example.com/?x={pod}":                                 "{pod}",
		"https://":                                                             "want http://",
		"http://a b/":                                                          "want http://",
	} {
		s, err := operator.New(operator.Config{Logger: brokertest.Quiet(), Workflows: newMemory(1), Links: []operator.Link{{Name: "Grafana", URL: url}}})
		if err == nil {
			defer s.Close(t.Context())
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
