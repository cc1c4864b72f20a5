package operator_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// parts is the configuration of a service that has all parts of a fleet.
type parts struct {
	Lifecycle lifecycle.Config
	Broker    broker.Config
	Presence  presence.Config
	Host      host.Config
	Pool      procpool.Config
	Operator  operator.Config
}

func loadParts(t *testing.T, content string) (parts, error) {
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load[parts](file, config.WithEnviron(nil), config.WithArgs(nil))
}

// K19: one file configures all parts, and it need not set every key.
func TestOneFileConfiguresAllParts(t *testing.T) {
	got, err := loadParts(t, `
lifecycle: {shutdown_grace: 40s}
broker: {url: "nats://a:4222"}
presence: {ttl: 30s, journal_age: 24h}
host: {lease_ttl: 20s, limits: {time: 2s}}
pool: {max_workers: 4, health_interval: off, recycle: {max_rss: 1000}, backoff: {max: 30s}}
operator: {addr: "127.0.0.1:9", loopback_role: viewer, links: [{name: Grafana, url: "https://g.example.com"}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := parts{
		Lifecycle: lifecycle.Config{ShutdownGrace: 40 * time.Second},
		Broker:    broker.Config{URL: "nats://a:4222"},
		Presence:  presence.Config{TTL: 30 * time.Second, JournalAge: 24 * time.Hour},
		Host:      host.Config{LeaseTTL: 20 * time.Second},
		Pool: procpool.Config{
			MaxWorkers:     4,
			HealthInterval: procpool.Off,
			Recycle:        procpool.Recycle{MaxRSS: 1000},
			Backoff:        worker.Backoff{Max: 30 * time.Second},
		},
		Operator: operator.Config{
			Addr:         "127.0.0.1:9",
			LoopbackRole: operator.RoleViewer,
			Links:        []operator.Link{{Name: "Grafana", URL: "https://g.example.com"}},
		},
	}
	want.Host.Limits.Time = 2 * time.Second
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := loadParts(t, "# nothing is set"); err != nil {
		t.Errorf("a file without any key: %v", err)
	}
}

// K19: each fault names the key of its part, once, and where its value is from.
func TestFaultsOfPartsNameTheirKeys(t *testing.T) {
	_, err := loadParts(t, `
broker: {sync: sometimes}
presence: {ttl: 1ms}
host: {replicas: 2, limits: {time: -1s}}
pool: {max_workers: -1, backoff: {min: -5s}}
operator: {rate: -1}
`)
	if err == nil {
		t.Fatal("all values were taken")
	}
	for _, key := range []string{"broker.sync", "presence.ttl", "host.replicas", "host.limits.time", "pool.max_workers", "pool.backoff.min", "operator.rate"} {
		if strings.Count(err.Error(), "config: "+key) != 1 || !strings.Contains(err.Error(), " ("+key+" is from ") {
			t.Errorf("not one fault names %s and its source: %v", key, err)
		}
	}
}
