package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/lease"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

var _ lifecycle.Elector = (*lease.Lease)(nil)

const ttl = time.Second

// TestOnOtherServers runs these tests on a server in a process of its own, and the tests
// of terms on a cluster of three. "make chaos" runs all of them on three.
func TestOnOtherServers(t *testing.T) {
	if brokertest.KindOfRun(t) != brokertest.InProcess {
		return
	}
	const own = "^TestOnOtherServers$"
	for kind, tests := range map[brokertest.Kind]string{
		brokertest.Separate:  "^Test",
		brokertest.Clustered: "^(TestOneHolderAtATime|TestLeaseOfADeadHolderRunsOut)$",
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			brokertest.Again(t, kind, tests, own, 2)
		})
	}
}

func leases(t *testing.T, n int, ttl time.Duration) (*broker.Broker, []*lease.Lease) {
	t.Helper()
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{lease.Bucket("LEASES", ttl)}})
	ls := make([]*lease.Lease, n)
	for i := range ls {
		l, err := lease.New(t.Context(), b.JetStream(), lease.Config{Bucket: "LEASES", Key: "work", Holder: string(rune('a' + i))})
		if err != nil {
			t.Fatal(err)
		}
		ls[i] = l
	}
	return b, ls
}

func acquire(t *testing.T, l *lease.Lease) time.Duration {
	t.Helper()
	granted, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func TestOneHolderAtATime(t *testing.T) {
	const ttl = time.Minute // does not run out meanwhile
	_, ls := leases(t, 2, ttl)
	a, b := ls[0], ls[1]
	if got := acquire(t, a); got != ttl {
		t.Errorf("a was granted %v", got)
	}
	if got := acquire(t, b); got != 0 {
		t.Errorf("b was granted %v beside a", got)
	}
	first, valid := a.Token()
	if first == 0 || !valid {
		t.Errorf("token %d, %v", first, valid)
	}
	if got := acquire(t, a); got != ttl {
		t.Errorf("a was renewed for %v", got)
	}
	if same, _ := a.Token(); same != first {
		t.Errorf("the token changed in the term, from %d to %d", first, same)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if holder, err := b.Holder(t.Context()); holder != "a" || err != nil {
		t.Errorf("held by %q, %v", holder, err)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if holder, err := b.Holder(t.Context()); holder != "" || err != nil {
		t.Errorf("held by %q after its release, %v", holder, err)
	}
	if got := acquire(t, b); got != ttl {
		t.Errorf("b was granted %v after the release", got)
	}
	second, _ := b.Token()
	if second <= first {
		t.Errorf("a later term has the token %d, the first had %d", second, first)
	}
	if _, valid := a.Token(); valid {
		t.Error("a trusts a lease that it gave back")
	}
}

func TestLeaseOfADeadHolderRunsOut(t *testing.T) {
	_, ls := leases(t, 2, ttl)
	a, b := ls[0], ls[1]
	began := time.Now()
	acquire(t, a)
	first, _ := a.Token()
	brokertest.Await(t, "b to lead", func() bool { return acquire(t, b) > 0 })
	if after := time.Since(began); after < ttl {
		t.Errorf("b leads %v after a was granted %v", after, ttl)
	}
	if _, valid := a.Token(); valid {
		t.Error("a trusts its lease while b has it")
	}
	got := acquire(t, a)
	if _, still := b.Token(); got != 0 && still {
		t.Errorf("a was granted %v beside b", got)
	}
	if second, _ := b.Token(); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
}

func TestTermAfterAPauseHasANewToken(t *testing.T) {
	_, ls := leases(t, 1, ttl)
	acquire(t, ls[0])
	first, _ := ls[0].Token()
	brokertest.Await(t, "the trust to end", func() bool { _, valid := ls[0].Token(); return !valid })
	began := time.Now()
	acquire(t, ls[0])
	if second, valid := ls[0].Token(); second <= first || !valid && time.Since(began) < ttl {
		t.Errorf("token %d after %d, %v", second, first, valid)
	}
}

func TestLostAnswerIsFoundByTheNextAttempt(t *testing.T) {
	_, ls := leases(t, 2, ttl)
	acquire(t, ls[0])
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ls[0].Acquire(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := acquire(t, ls[0]); got != ttl {
		t.Errorf("granted %v after an answer was lost", got)
	}
}

func TestNewRefuses(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{
		{Bucket: "FOREVER"}, lease.Bucket("SHORT", 500*time.Millisecond), lease.Bucket("GOOD", ttl),
	}})
	for name, c := range map[string]struct {
		cfg  lease.Config
		says string
	}{
		"no bucket":        {lease.Config{Bucket: "NONE", Key: "k"}, "bucket not found"},
		"no expiry":        {lease.Config{Bucket: "FOREVER", Key: "k"}, "lease.Bucket"},
		"too short":        {lease.Config{Bucket: "SHORT", Key: "k"}, "want 1s"},
		"a key that's bad": {lease.Config{Bucket: "GOOD", Key: "a key"}, "invalid key"},
	} {
		if _, err := lease.New(t.Context(), b.JetStream(), c.cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestServerThatIsGoneIsAnError(t *testing.T) {
	b, ls := leases(t, 1, ttl)
	acquire(t, ls[0])
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if granted, err := ls[0].Acquire(t.Context()); err == nil || granted != 0 {
		t.Errorf("granted %v, %v", granted, err)
	}
}

// TestAppsTakeOver checks that of two Apps with one lease only one leads, and that the
// second takes over when the first stops.
func TestAppsTakeOver(t *testing.T) {
	_, ls := leases(t, 2, time.Minute)
	leading := make(chan string, 8)
	run := func(name string, l *lease.Lease) (stop func()) {
		cfg := lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off, LeaderRetry: 50 * time.Millisecond}
		app, err := lifecycle.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		app.Lead("work", l, func(ctx context.Context) error {
			leading <- name
			<-ctx.Done()
			return nil
		})
		done := make(chan error, 1)
		go func() { done <- app.Run(context.Background()) }()
		return func() {
			app.Stop(nil)
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := run("a", ls[0])
	if got := <-leading; got != "a" {
		t.Errorf("%s leads", got)
	}
	other := run("b", ls[1])
	select {
	case got := <-leading:
		t.Errorf("%s leads beside a", got)
	case <-time.After(300 * time.Millisecond): // six campaigns of b
	}
	stop()
	if got := <-leading; got != "b" {
		t.Errorf("%s leads", got)
	}
	other()
}

func TestOutageIsCalledOne(t *testing.T) {
	site := brokertest.NewSite(t)
	b := site.Connect(t, broker.Config{Buckets: []jetstream.KeyValueConfig{lease.Bucket("LEASES", ttl)}})
	l, err := lease.New(t.Context(), b.JetStream(), lease.Config{Bucket: "LEASES", Key: "work"})
	if err != nil {
		t.Fatal(err)
	}
	site.Stop()
	brokertest.Await(t, "the connection to be down", func() bool { return !b.Conn().IsConnected() })
	if _, err := l.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "disconnected") {
		t.Errorf("Acquire without a server: %v", err)
	}
}
