package main

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// fleetFaults are faults that the platform, a host of workers or another release causes.
func fleetFaults() []fault {
	return []fault{
		{
			name: "a process that its host gives up", about: "till.evicted-1",
			rule: "process-evicted", cause: "low on resource: memory",
			inject: func(t *testing.T, s *site) {
				cmd, _ := s.child(t, "till.evicted-1")
				s.mu.Lock()
				s.ends["till.evicted-1"] = presence.End{Reason: "Evicted", ExitStatus: -1, Message: "The node was low on resource: memory."} // as kube.Client reads it from the pod's status
				s.mu.Unlock()
				_ = cmd.Process.Kill() // as the kubelet does
			}},
		{
			name: "a worker whose secret is gone", about: "worker/secretive",
			rule: "worker-failed", cause: "secret TOKEN",
			inject: func(t *testing.T, s *site) {
				if _, err := s.workers.Apply(t.Context(), &operatorv1.WorkerSpec{
					Id: "secretive", Tenant: "shop", MimeType: "text/x-starlark", Topic: "orders.secretive", Secrets: []string{"TOKEN"},
					Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte("def handle(message):\n  return None\n")}},
				}, false, "test"); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(s.secret); err != nil {
					t.Fatal(err)
				}
				if _, err := s.workers.Stop(t.Context(), "secretive", "test"); err != nil {
					t.Fatal(err)
				}
				if _, err := s.workers.Start(t.Context(), "secretive", "test"); err != nil {
					t.Fatal(err)
				}
			}},
		{
			name: "a canary that fails", about: "worker/bird",
			rule: "canary-rolled-back", cause: "the canary is rolled back",
			inject: func(t *testing.T, s *site) {
				apply := func(code string) {
					t.Helper()
					if _, err := s.workers.Apply(t.Context(), &operatorv1.WorkerSpec{
						Id: "bird", MimeType: "text/x-starlark", Topic: "orders.bird", Rollout: &operatorv1.Rollout{Canary: 50, Messages: 1},
						Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte(code)}},
					}, false, "test"); err != nil {
						t.Fatal(err)
					}
				}
				apply("def handle(message):\n  return None\n")
				apply("def handle(message):\n  fail(\"boom\")\n")
				for i := range 40 {
					if _, err := s.js.Publish(t.Context(), "orders.bird", fmt.Append(nil, i)); err != nil {
						t.Fatal(err)
					}
				}
			}},
		{
			name: "a process of a release whose announcements have another form", about: "till.next-1",
			rule: "announcement-unreadable", cause: "its announcement cannot be read",
			inject: func(t *testing.T, s *site) {
				s.announceInAnotherForm(t, "till", "next-1")
			}},
	}
}

// storeFaults are faults of streams and of their readers.
func storeFaults() []fault {
	stream := func(t *testing.T, s *site, cfg jetstream.StreamConfig) jetstream.Stream {
		t.Helper()
		made, err := s.js.CreateStream(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	publish := func(s *site, subject string) error {
		_, err := s.js.Publish(context.Background(), subject, []byte("{}"))
		return err
	}
	return []fault{
		{
			name: "a stream that is nearly full", about: "stream/LEDGER",
			rule: "stream-full", cause: "the stream LEDGER has 10 of at most 10 messages",
			inject: func(t *testing.T, s *site) {
				stream(t, s, jetstream.StreamConfig{Name: "LEDGER", Subjects: []string{"ledger"}, MaxMsgs: 10, Discard: jetstream.DiscardNew})
				for range 10 {
					if err := publish(s, "ledger"); err != nil {
						t.Fatal(err)
					}
				}
			}},
		{
			name: "a consumer that stands still", about: "stream/INVOICES",
			rule: "consumer-stalled", cause: "while 36 messages wait",
			inject: func(t *testing.T, s *site) {
				made := stream(t, s, jetstream.StreamConfig{Name: "INVOICES", Subjects: []string{"invoices"}})
				if _, err := made.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
					t.Fatal(err)
				}
				for range 36 {
					if err := publish(s, "invoices"); err != nil {
						t.Fatal(err)
					}
				}
			}},
		{
			name: "a consumer whose unit hangs", about: "packer-1",
			rule: "consumer-stalled", cause: "the unit packing has its name",
			inject: func(t *testing.T, s *site) {
				made := stream(t, s, jetstream.StreamConfig{Name: "PARCELS", Subjects: []string{"parcels"}})
				c, err := made.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "packing", AckPolicy: jetstream.AckExplicitPolicy})
				if err != nil {
					t.Fatal(err)
				}
				s.app(t, "packer-1", lifecycle.Config{}, func(app *lifecycle.App) {
					app.Go("packing", func(ctx context.Context) error {
						if _, err := c.Next(jetstream.FetchMaxWait(time.Minute)); err != nil {
							return err
						}
						<-ctx.Done() // for a call that does not return
						return nil
					})
				})
				for range 5 {
					if err := publish(s, "parcels"); err != nil {
						t.Fatal(err)
					}
				}
			}},
		{
			name: "a consumer that fails at its last message again and again", about: "stream/REFUNDS",
			rule: "consumer-stalled", cause: "1 delivered more than once and never acknowledged",
			inject: func(t *testing.T, s *site) {
				made := stream(t, s, jetstream.StreamConfig{Name: "REFUNDS", Subjects: []string{"refunds"}})
				c, err := made.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "refunding", AckPolicy: jetstream.AckExplicitPolicy})
				if err != nil {
					t.Fatal(err)
				}
				if err := publish(s, "refunds"); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					for ctx.Err() == nil {
						if m, err := c.Next(jetstream.FetchMaxWait(time.Second)); err == nil {
							_ = m.NakWithDelay(time.Second)
						}
					}
				}()
				t.Cleanup(func() { stop(); <-done })
			}},
		{
			name: "a consumer that is too slow", about: "stream/CLICKS",
			rule: "backlog-grows", cause: "the consumer counter of the stream CLICKS has grown",
			inject: func(t *testing.T, s *site) {
				made := stream(t, s, jetstream.StreamConfig{Name: "CLICKS", Subjects: []string{"clicks"}})
				c, err := made.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "counter", AckPolicy: jetstream.AckExplicitPolicy})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					tick := time.NewTicker(time.Second)
					defer tick.Stop()
					for {
						for range 3 {
							_ = publish(s, "clicks")
						}
						if m, err := c.Next(jetstream.FetchMaxWait(time.Second)); err == nil {
							_ = m.Ack()
						}
						select {
						case <-ctx.Done():
							return
						case <-tick.C:
						}
					}
				}()
				t.Cleanup(func() { stop(); <-done })
			}},
	}
}

// announceInAnotherForm puts announcements into the bucket as a process does, in a form that
// this release does not know. It ends with the test.
func (s *site) announceInAnotherForm(t *testing.T, service, instance string) {
	kv, err := s.js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	id := service + "." + instance
	go func() {
		defer close(done)
		for n := 1; ctx.Err() == nil; n++ {
			stamp := fmt.Sprintf(`{"number":%d,"at":%q}`, n, time.Now().UTC().Format(time.RFC3339Nano))
			process := fmt.Sprintf(`{"id":%q,"service":%q,"host":"node-9","version":"9.0.0","status":"running, and well"}`, id, service)
			body := stamp + "\n" + process
			signature := ed25519.Sign(private, []byte("lifecycle-go presence\nentry FLEET "+id+"\n"+body))
			_, _ = kv.Put(ctx, id, fmt.Appendf(nil, "lifecycle1 %s %s\n%s", base64.RawURLEncoding.EncodeToString(public), base64.RawURLEncoding.EncodeToString(signature), body))
			pause := time.NewTimer(time.Second)
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

// clockCanBeSet reports why this machine does not let a process have another time of day.
func clockCanBeSet() error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_ID=clock", "FAULT_CLOCK=1h")
	text, err := cmd.Output()
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return err
	}
	if off := time.Until(time.Unix(at, 0)); off < 50*time.Minute {
		return errors.New("the clock of a child is " + off.String() + " off, want an hour")
	}
	return nil
}

// clockFaults are faults of processes whose time of day is another one, and faults that take
// a quarter of an hour: there the process's clock was behind for a moment.
func clockFaults() []fault {
	return []fault{
		{
			name: "a clock that is an hour ahead", about: "till.ahead-1",
			rule: "clock-skew", cause: "differs from the broker's by 1h0m",
			inject: func(t *testing.T, s *site) {
				s.child(t, "till.ahead-1", "FAULT_CLOCK=1h")
			}},
		{
			name: "a suspension that was forgotten", about: "till.forgotten-1",
			rule: "suspended-long", cause: "readiness is suspended: new disk",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.forgotten-1")
				fmt.Fprintln(in, "suspend")
			}},
		{
			name: "a child that was stopped and forgotten", about: "till.parked-1",
			rule: "unit-stopped", cause: "unit children/mailer was stopped and not started again",
			inject: func(t *testing.T, s *site) {
				_, in := s.child(t, "till.parked-1", "FAULT_TREE=yes")
				fmt.Fprintln(in, "park")
			}},
		{
			name: "two versions of one service", about: "service/kiosk",
			rule: "version-skew", cause: "1 with 1.2.3, 1 with 1.2.4",
			inject: func(t *testing.T, s *site) {
				for id, version := range map[string]string{"kiosk.old-1": "1.2.3", "kiosk.new-1": "1.2.4"} {
					s.child(t, id, "FAULT_VERSION="+version, "FAULT_CLOCK=-16m", "FAULT_CLOCK_THEN=0s")
				}
			}},
	}
}

// Each rule has a fault that TestFaultsAreNamed injects.
func TestEveryRuleHasAFault(t *testing.T) {
	full, killed, _ := memoryFaults("")
	all := slices.Concat(faults(), fleetFaults(), storeFaults(), clockFaults(), loadFaults(), killed, []fault{
		full,
		{rule: "dependency-away"},
		{rule: "store-replaced"},
		{rule: "store-refuses-writes"}, // TestFullDiskIsNamed
		{rule: "hook-fails"},           // it needs a workflow with a journal: TestFaults of diagnosis
		{rule: "memory-grows"},         // it takes ten minutes: TestFaults of diagnosis
		{rule: "throttled"},            // it needs a processor of its own: the same
	})
	injected := map[string]bool{}
	for _, f := range all {
		injected[f.rule] = true
	}
	for _, r := range diagnosis.Rules {
		if !injected[r.Name] {
			t.Errorf("no fault is injected for the rule %s", r.Name)
		}
	}
}
