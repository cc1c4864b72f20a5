package host

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
)

func TestFromEnv(t *testing.T) {
	env := map[string]string{
		"WORKER_RECOVERY_ON_START": "false", "WORKER_RECOVERY_LEASE_TTL_SECONDS": "300", "WORKER_RECOVERY_ACQUIRE_TIMEOUT_SECONDS": "60",
		"GROUP_LOCK_RETRY_BASE_DELAY_MS": "250", "GROUP_LOCK_MAX_RETRIES": "0",
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	cfg, err := FromEnv(Config{Prefetch: 7}, lookup)
	if err != nil || !cfg.RecoveryOff || cfg.LeaseTTL != 5*time.Minute || cfg.AcquireTimeout != time.Minute ||
		cfg.RetryBase != 250*time.Millisecond || cfg.attempts() != 1 || cfg.Prefetch != 7 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for name := range env {
		env[name] = "soon"
	}
	_, err = FromEnv(Config{}, lookup)
	for name := range env {
		if err == nil || !strings.Contains(err.Error(), name+`="soon"`) {
			t.Errorf("%s is not named by %v", name, err)
		}
	}
}

func TestConfigIsRefused(t *testing.T) {
	engines, err := engine.NewRegistry(native.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := (Config{Engines: engines}).WithDefaults().Validate(); err != nil {
		t.Errorf("the zero value with engines: %v", err)
	}
	_, err = New(struct{ jetstream.JetStream }{}, Config{Name: "lower"})
	for _, want := range []string{"host: ", "engines: there is none", "name: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New without engines and with a bad name does not say %q: %v", want, err)
		}
	}
	for want, change := range map[string]func(*Config){
		"name":            func(c *Config) { c.Name = "lower" },
		"host_id":         func(c *Config) { c.HostID = "a.b" },
		"replicas":        func(c *Config) { c.Replicas = 2 },
		"lease_ttl":       func(c *Config) { c.LeaseTTL = time.Millisecond },
		"acquire_timeout": func(c *Config) { c.AcquireTimeout = -1 },
		"retry_base":      func(c *Config) { c.RetryBase = time.Hour },
		"max_retries":     func(c *Config) { c.MaxRetries = -2 },
		"max_unanswered":  func(c *Config) { c.MaxUnanswered = -1 },
		"ack_wait":        func(c *Config) { c.AckWait = time.Millisecond },
		"prefetch":        func(c *Config) { c.Prefetch = -1 },
		"max_message":     func(c *Config) { c.MaxMessage = -1 },
		"drain_timeout":   func(c *Config) { c.DrainTimeout = -1 },
		"limits.time":     func(c *Config) { c.Limits.Time = -1 },
	} {
		c := Config{Engines: engines}
		change(&c)
		if err := c.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestOwnerMovesOnlyItsShare checks that slots are spread evenly, and that a host that
// leaves moves its own slots and no others.
func TestOwnerMovesOnlyItsShare(t *testing.T) {
	hosts := []string{"a", "b", "c", "d"}
	count := make(map[string]int)
	const n = 4000
	for i := range n {
		slot := fmt.Sprint("w-", i)
		before := owner(hosts, slot)
		count[before]++
		if again := owner([]string{"d", "c", "b", "a"}, slot); again != before {
			t.Fatalf("%s belongs to %s and, in another order, to %s", slot, before, again)
		}
		if after := owner(hosts[:3], slot); before != "d" && after != before {
			t.Fatalf("%s moved from %s to %s when d left", slot, before, after)
		}
	}
	for h, got := range count {
		if got < n/4*8/10 || got > n/4*12/10 {
			t.Errorf("%s has %d of %d slots", h, got, n)
		}
	}
}

func TestTopics(t *testing.T) {
	for pattern, subjects := range map[string]map[string]bool{
		"a.b": {"a.b": true, "a": false, "a.b.c": false, "a.c": false},
		"a.*": {"a.b": true, "a": false, "a.b.c": false},
		"a.>": {"a.b": true, "a.b.c": true, "a": false},
		">":   {"a": true, "a.b": true},
		"*.b": {"a.b": true, "b": false},
	} {
		for subject, want := range subjects {
			if matches(pattern, subject) != want {
				t.Errorf("%s matches %s: %v", pattern, subject, !want)
			}
		}
	}
	got := topics([]*Record{{Topic: "a.b"}, {Topic: "a.*"}, {Topic: "c"}, {Topic: "c"}, {Topic: "a.b.c"}})
	if !slices.Equal(got, []string{"a.*", "a.b.c", "c"}) {
		t.Errorf("topics %v", got)
	}
}

// FuzzPatterns checks that no topic makes the functions panic, and that every topic
// that can be published to is also a valid pattern and matches itself.
func FuzzPatterns(f *testing.F) {
	for _, seed := range []string{"a.b", "a.*", ">", "", ".", "a..b", "a b", "*.>"} {
		f.Add(seed, "a.b")
	}
	f.Fuzz(func(t *testing.T, topic, other string) {
		if engine.ValidTopic(topic) && (!validPattern(topic) || !matches(topic, topic) || !matches(">", topic)) {
			t.Errorf("%q", topic)
		}
		_ = matches(topic, other)
	})
}

// The log keeps whose letter a message or an output becomes, for the host that reads it.
func TestTheLogKeepsTheTenant(t *testing.T) {
	decision := deadLetterDecision{Worker: "w", Tenant: "a"}
	stored, err := json.Marshal(entry{
		Known:   &known{Tries: map[uint64]tries{1: {Letter: &decision}}},
		Outputs: []*output{{Worker: "w", Tenant: "a"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var e entry
	if err := json.Unmarshal(stored, &e); err != nil || e.Known == nil {
		t.Fatalf("%s: %v", stored, err)
	}
	letter := e.Known.Tries[1].Letter
	if letter == nil || *letter != decision || e.Outputs[0].Tenant != "a" {
		t.Errorf("%s: the letter is %+v, want %+v", stored, letter, decision)
	}
}
