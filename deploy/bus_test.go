package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// nkey is a public key of the right form.
var nkey = "U" + strings.Repeat("A", 55)

// TestBusUserIsTheShippedOne: the chart renders the file in nats/users, which the tests of
// fleet/presence attack on a real server.
func TestBusUserIsTheShippedOne(t *testing.T) {
	for _, service := range []string{"orders", "billing"} {
		text, err := os.ReadFile(filepath.Join("nats", "users", service+".conf"))
		if err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(string(text), "$"+strings.ToUpper(service)+"_NKEY", nkey)
		manifest := chart(t, "fullnameOverride="+service, "bus.enabled=true", "bus.seedSecret=seed", "bus.nkey="+nkey)
		got := fields(t, manifest, "ConfigMap/"+service+"-nats-user", "data")
		var data map[string]string
		if err := yaml.Unmarshal([]byte(got[0]), &data); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(data[service+".conf"]) != strings.TrimSpace(want) {
			t.Errorf("the chart renders\n%s\nand the file is\n%s", data[service+".conf"], want)
		}
	}
	// The subjects have the App's name as package presence writes it: as one token of a subject.
	manifest := chart(t, "bus.enabled=true", "bus.seedSecret=seed", "bus.nkey="+nkey, "config.lifecycle.name=Orders of Zürich.>")
	for _, want := range []string{"$KV.FLEET.Orders-of-Z-rich--.>", "USER_ORDERS_OF_Z_RICH__:", "_INBOX_Orders-of-Z-rich--\"", "command.Orders-of-Z-rich--.>"} {
		if !strings.Contains(manifest, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if manifest := chart(t, "bus.nkey="+nkey); strings.Contains(manifest, "nats") || strings.Contains(manifest, "/etc/bus") {
		t.Error("a chart without the bus has parts of it")
	}
}

// TestBusReachesThePods: the pods have the user's seed, the operators' keys and a way to
// NATS.
func TestBusReachesThePods(t *testing.T) {
	manifest := with(t, everything)
	for _, want := range []string{
		`{name: ORDERS_NATS_URL, value: "tls://nats-0.nats:4222,tls://nats-1.nats:4333"}`,
		`{name: ORDERS_NATS_NKEY_FILE, value: /etc/bus/user/user.nk}`,
		`{name: ORDERS_NATS_INBOX_PREFIX, value: "_INBOX_shop-orders"}`,
		`{name: ORDERS_OPERATORS_FILE, value: /etc/bus/operators/operators.pem}`,
		`secret: {secretName: "orders-nats"}`, `configMap: {name: "operators"}`,
		`{name: bus-user, mountPath: /etc/bus/user, readOnly: true}`, `{name: bus-operators, mountPath: /etc/bus/operators, readOnly: true}`,
		`{port: 4222, protocol: TCP}`, `{port: 4333, protocol: TCP}`,
	} {
		if strings.Count(manifest, want) != 1 {
			t.Errorf("it has %d times %s", strings.Count(manifest, want), want)
		}
	}
}
