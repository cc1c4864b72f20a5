package operator_test

import (
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// Behind a proxy that the configuration trusts, the audit has the address of the client.
func TestAddressBehindTrustedProxies(t *testing.T) {
	for _, tc := range []struct {
		trusted   []string
		forwarded string
		want      string
	}{
		{nil, "203.0.113.9", "127.0.0.1:"},
		{[]string{"10.0.0.0/8"}, "203.0.113.9", "127.0.0.1:"},
		{[]string{"127.0.0.1"}, "203.0.113.9", "203.0.113.9"},
		{[]string{"127.0.0.0/8", "10.0.0.0/8"}, "198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"}, // the client wrote the first
		{[]string{"127.0.0.1"}, "nonsense, 203.0.113.9", "203.0.113.9"},
		{[]string{"127.0.0.1"}, "nonsense", "127.0.0.1:"},
		{[]string{"127.0.0.1"}, "", "127.0.0.1:"},
	} {
		_, auth := tokenFile(t)
		base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth, TrustedProxies: tc.trusted})
		header := append(bearer(adaToken), "X-Forwarded-For", tc.forwarded)
		code, _, text := request(t, "POST", base+"/workflows/drone-survey/m-00000/transition", `{"phase":"flying"}`, header...)
		if code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		_, _, text = request(t, "GET", base+"/audit", "", bearer(adaToken)...)
		if !strings.Contains(text, `"remote":"`+tc.want) {
			t.Errorf("trusted %v, forwarded %q: the audit has %s, want %s", tc.trusted, tc.forwarded, text, tc.want)
		}
	}
	if _, err := operator.New(operator.Config{TrustedProxies: []string{"ingress"}, Logger: quiet}); err == nil || !strings.Contains(err.Error(), "TrustedProxies") {
		t.Errorf("a proxy's name: %v", err)
	}
}
