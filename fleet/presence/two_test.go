package presence_test

import (
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// Two fleets in one NATS that differ in their Bucket share nothing. A journal that has the events
// of another fleet is an error that names the setting.
func TestTwoFleetsInOneNATS(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	fleets := map[string]*presence.Fleet{}
	for _, bucket := range []string{"SHOP", "BANK"} {
		app, err := lifecycle.New(lifecycle.Config{Name: strings.ToLower(bucket), HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
		if err != nil {
			t.Fatal(err)
		}
		cfg := presence.Config{Bucket: bucket, Logger: brokertest.Quiet()}
		presence.Announce(app, js, cfg)
		done := make(chan error, 1)
		go func() { done <- app.Run(t.Context()) }()
		defer func() { app.Stop(nil); <-done }()
		if fleets[bucket], err = presence.Open(t.Context(), js, cfg); err != nil {
			t.Fatal(err)
		}
	}
	for bucket, f := range fleets {
		var list []presence.Event
		brokertest.Await(t, "the events of "+bucket, func() bool {
			list, _, _ = f.Events(t.Context(), presence.EventQuery{Limit: 100}) // while the journal is not there yet, an error
			return has(list, "joined", "", "", "")
		})
		for _, e := range list {
			if e.Service != strings.ToLower(bucket) {
				t.Errorf("the journal of %s has an event of %s", bucket, e.Service)
			}
		}
	}
	other, err := presence.Open(t.Context(), js, presence.Config{Bucket: "THIRD", Journal: "SHOP_JOURNAL", Logger: brokertest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Events(t.Context(), presence.EventQuery{Limit: 1}); err == nil || !strings.Contains(err.Error(), "presence.Config.Journal") {
		t.Errorf("the journal of another fleet: %v", err)
	}
}
