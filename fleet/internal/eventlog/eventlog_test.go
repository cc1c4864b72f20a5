package eventlog_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// Pages have every record once, newest first, also of a subject with few records among
// many, and after the oldest ones have gone.
func TestPagesHaveEveryRecord(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	log, err := eventlog.Open(t.Context(), js, eventlog.Config{Stream: "LOG", Subjects: []string{"log.>"}, MaxAge: time.Hour, MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if page, next, err := log.Back(t.Context(), eventlog.Query{Subjects: []string{"log.>"}, Limit: 10}); len(page) != 0 || next != 0 || err != nil {
		t.Errorf("an empty log: %v, %d, %v", page, next, err)
	}
	const records, every = 3000, 50
	for i := range records {
		subject := "log.often"
		if i%every == 0 {
			subject = "log.rare"
		}
		if err := log.Append(t.Context(), subject, "", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	all := func(subject string, limit int, keep func(eventlog.Record) bool) (seqs []uint64) {
		t.Helper()
		for before := uint64(0); ; {
			page, next, err := log.Back(t.Context(), eventlog.Query{Subjects: []string{subject}, Before: before, Limit: limit, Keep: keep})
			if err != nil || len(page) > limit {
				t.Fatalf("%d records, %v", len(page), err)
			}
			for _, r := range page {
				if n := len(seqs); n > 0 && r.Seq >= seqs[n-1] {
					t.Fatalf("record %d after %d", r.Seq, seqs[n-1])
				}
				seqs = append(seqs, r.Seq)
			}
			if before = next; next == 0 {
				return seqs
			}
		}
	}
	since, _, err := log.Back(t.Context(), eventlog.Query{Subjects: []string{"log.>"}, After: records - 20, Limit: 100})
	if err != nil || len(since) != 20 || since[19].Seq != records-19 {
		t.Fatalf("after the record %d: %d records, %v", records-20, len(since), err)
	}
	page, next, err := log.Back(t.Context(), eventlog.Query{Subjects: []string{"log.>"}, Since: since[9].At, Limit: 100})
	if err != nil || next != 0 || len(page) < 10 || len(page) > 20 || page[0].Seq != records {
		t.Errorf("since the record %d: %d records, the next before %d, %v", since[9].Seq, len(page), next, err)
	}
	if n := len(all("log.>", 700, nil)); n != records {
		t.Errorf("%d records of all", n)
	}
	if n := len(all("log.rare", 7, nil)); n != records/every {
		t.Errorf("%d records of the rare subject", n)
	}
	if n := len(all("log.>", 7, func(r eventlog.Record) bool { return r.Subject == "log.rare" })); n != records/every {
		t.Errorf("%d records that are kept", n)
	}
	stream, err := js.Stream(t.Context(), "LOG")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 2500); err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second has the same id
		if err := log.Append(t.Context(), "log.rare", "one", nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(all("log.>", 5, nil)); n != 1 {
		t.Errorf("%d records after a purge", n)
	}
}

// A query that keeps few of many records holds no more of them in memory than its page has.
func TestScanHoldsOnlyItsPage(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	log, err := eventlog.Open(t.Context(), js, eventlog.Config{Stream: "LOG", Subjects: []string{"log.>"}, MaxAge: time.Hour, MaxBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	const records, size = 5300, 1 << 10
	for n := range records {
		if _, err := js.PublishAsync("log.a", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if n%1000 == 0 || n == records-1 { // a client that is far ahead of the server gets an error
			<-js.PublishAsyncComplete()
		}
	}
	seen, live := 0, 0
	var all []weak.Pointer[byte]
	page, _, err := log.Back(t.Context(), eventlog.Query{Subjects: []string{"log.>"}, Limit: 5, Keep: func(r eventlog.Record) bool {
		all = append(all, weak.Make(&r.Data[0]))
		if seen++; seen == records-100 {
			runtime.GC()
			for _, p := range all {
				if p.Value() != nil {
					live++
				}
			}
		}
		return r.Seq%2000 == 0
	}})
	if err != nil || len(page) != 2 || page[0].Seq != 4000 {
		t.Fatalf("%d records, %v", len(page), err)
	}
	if live == 0 || live > records/3 { // a batch of the client is some hundred
		t.Errorf("a scan of %d records held %d of them", records, live)
	}
}
