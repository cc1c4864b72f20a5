package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

// chaosConfig returns the configuration of the test's hosts, in every process.
func chaosConfig(id string, replicas int) (host.Config, error) {
	engines, err := engine.NewRegistry(starlark.New())
	return host.Config{HostID: id, Engines: engines, Replicas: replicas, LeaseTTL: 2 * time.Second, AckWait: 3 * time.Second,
		RetryBase: 20 * time.Millisecond, MaxUnanswered: 50, Logger: slog.New(slog.DiscardHandler), Isolation: isolate.Config{Program: os.Getenv(programEnv)}}, err
}

// hostProcess runs a host in a process of its own, until SIGTERM or the end of its
// parent.
func hostProcess() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	replicas, _ := strconv.Atoi(os.Getenv("HOST_TEST_REPLICAS"))
	err := func() error {
		b, err := broker.Connect(ctx, broker.Config{URL: os.Getenv("HOST_TEST_URL"), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		defer b.Close(context.Background())
		cfg, err := chaosConfig(os.Getenv(scenarioEnv), replicas)
		if err != nil {
			return err
		}
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", cfg.HostID)
		h, err := host.New(b.JetStream(), cfg)
		if err != nil {
			return err
		}
		if err := h.Start(context.Background()); err != nil {
			return err
		}
		fmt.Println("started")
		gone := make(chan struct{})
		go func() { // the pipe closes when the parent dies
			defer close(gone)
			_, _ = os.Stdin.Read(make([]byte, 1))
		}()
		select {
		case <-ctx.Done():
		case <-gone:
		}
		end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return h.Stop(end)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fleetOf starts and breaks host processes.
type fleetOf struct {
	t        *testing.T
	url      string
	replicas int
	log      *os.File // what they write, shown when the test fails
	started  int
	running  []*exec.Cmd
}

func (f *fleetOf) start() {
	f.t.Helper()
	self, err := os.Executable()
	must(f.t, err)
	cmd := exec.Command(self)
	f.started++
	cmd.Env = append(os.Environ(), fmt.Sprint(scenarioEnv, "=h", f.started), "HOST_TEST_URL="+f.url, fmt.Sprint("HOST_TEST_REPLICAS=", f.replicas))
	cmd.Stderr = f.log
	_, err = cmd.StdinPipe()
	must(f.t, err)
	out, err := cmd.StdoutPipe()
	must(f.t, err)
	must(f.t, cmd.Start())
	if _, err := out.Read(make([]byte, 8)); err != nil {
		f.t.Fatalf("a host process: %v", err)
	}
	f.running = append(f.running, cmd)
}

// tell ends the running hosts with SIGQUIT, so that they dump their goroutines,
// and logs the output of all hosts.
func (f *fleetOf) tell() {
	for len(f.running) > 0 {
		f.end(0, syscall.SIGQUIT)
	}
	said, err := os.ReadFile(f.log.Name())
	f.t.Logf("the output of the hosts (%v):\n%s", err, said)
}

func (f *fleetOf) end(i int, sig syscall.Signal) {
	cmd := f.running[i]
	f.running = append(f.running[:i:i], f.running[i+1:]...)
	_ = cmd.Process.Signal(sig)
	_ = cmd.Process.Signal(syscall.SIGCONT) // it may be stalled
	_ = cmd.Wait()
}

const chaosCode = `
def handle(message):
    if message.timer != None:
        key = "t/" + message.text
        state.put(key, str(int(state.get(key) or "0") + 1))
        if message.text.endswith("3") and message.attempt == 1:
            fail("not at the first attempt")
        return
    if len(timers.list()) < 50: # the messages have one key
        timers.set(message.text, 300, message.text)
        state.put("s/" + message.text, "1")
    key = "m/" + message.text
    state.put("n", str(int(state.get("n") or "0") + 1))
    state.put(key, str(int(state.get(key) or "0") + 1))
    if message.text.endswith("7") and message.attempt == 1:
        fail("not at the first attempt")
    if message.text.endswith("poison"):
        reject("poison")
    output = "%s attempt %d fence %d count %s" % (message.text, message.attempt, message.fence, state.get("n"))
    state.put("o/" + message.text, output)
    return output
`

// whereabouts describes the messages that had no effect, and the state of the consumer.
func (r *rig) whereabouts(topic string, sent int, written map[string]string) string {
	var missing []string
	for i := range sent {
		what := strconv.Itoa(i)
		if i%50 == 49 {
			continue // poison
		}
		found := false
		for key := range written {
			found = found || strings.HasSuffix(key, "m/"+what)
		}
		if !found {
			missing = append(missing, what)
		}
	}
	slot := "HOST_w-" + topic
	if topic == "g" || topic == "member" {
		slot = "HOST_g-g"
	}
	c, err := r.js.Consumer(r.t.Context(), "WORK", slot)
	if err != nil {
		return fmt.Sprintf("without effect: %q, consumer: %v", missing, err)
	}
	info := c.CachedInfo()
	return fmt.Sprintf("without effect: %q; consumer: %d pending, %d unacknowledged, %d redelivered, delivered %+v, floor %+v",
		missing, info.NumPending, info.NumAckPending, info.NumRedelivered, info.Delivered, info.AckFloor)
}

// TestChaos checks, under load, that no message is lost and no stale state is written
// while hosts are killed, stalled past their lease and replaced, servers of the cluster
// restart or are killed, and the stream of the outputs is away for longer than its duplicate window.
// At the end the ledger has every message once, and the outputs are exactly those that
// were committed, in the order of the messages.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes most of a minute")
	}
	const replicas = 3
	cluster := brokertest.StartCluster(t, 3)
	b := brokertest.Connect(t, broker.Config{URL: cluster.URL()})
	r := rigOn(t, b, replicas)
	cfg, err := chaosConfig("control", replicas)
	must(t, err)
	h, err := host.New(r.js, cfg) // never started: it has only the verbs
	must(t, err)
	t.Cleanup(func() { r.stop(h) })
	far := jetstream.StreamConfig{Name: "FAR", Subjects: []string{"far.>"}, Replicas: replicas, Duplicates: 2 * time.Second}
	_, err = r.js.CreateStream(t.Context(), far)
	must(t, err)
	away := func(is bool) {
		cfg := far
		if is {
			cfg.Subjects = []string{"away.>"}
		}
		r.eventually("the stream of the outputs has changed", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := r.js.UpdateStream(ctx, cfg)
			return err == nil
		})
	}
	ids := []string{"a", "b", "c", "g1", "g2"}
	for _, id := range ids {
		req := host.Spec{ID: id, MIMEType: "text/x-starlark", Topic: "work." + id, OutputTopic: "far." + id, Code: []byte(chaosCode)}
		if strings.HasPrefix(id, "g") {
			req.Group, req.Topic = "g", "work.g"
		}
		create(t, h, req)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "hosts.log"))
	must(t, err)
	hosts := &fleetOf{t: t, url: cluster.URL(), replicas: replicas, log: log}
	t.Cleanup(func() {
		if t.Failed() {
			hosts.tell()
		}
		for len(hosts.running) > 0 {
			hosts.end(0, syscall.SIGKILL)
		}
		must(t, log.Close())
	})
	for range 3 {
		hosts.start()
	}

	// The load goes on until the chaos is over.
	topics := []string{"a", "b", "c", "g"}
	over := make(chan struct{})
	sent := make(map[string]int)
	var load sync.WaitGroup
	load.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			for _, topic := range topics {
				what := strconv.Itoa(i)
				if i%50 == 49 {
					what += "poison"
				}
				// Publish until the server has it. It drops a repeated publish as a
				// duplicate.
				for {
					_, err := r.js.Publish(context.Background(), "work."+topic, []byte(what), jetstream.WithMsgID(topic+what))
					if err == nil {
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				sent[topic]++
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	pause := func(d time.Duration) { time.Sleep(d) } // the load needs time to pass on any machine
	var least time.Duration
	if n, err := strconv.Atoi(os.Getenv("CHAOS_SECONDS")); err == nil {
		least = time.Duration(n) * time.Second
	}
	for round, began := 0, time.Now(); round < 3 || time.Since(began) < least; round++ {
		pause(time.Second)
		away(round%2 == 0)
		hosts.end(0, syscall.SIGKILL)
		hosts.start()
		pause(time.Second)
		stalled := hosts.running[0]
		must(t, stalled.Process.Signal(syscall.SIGSTOP))
		pause(4 * time.Second) // its lease is 2 s
		must(t, stalled.Process.Signal(syscall.SIGCONT))
		if end := round % replicas; round%2 == 0 {
			cluster.Stop(end)
		} else {
			cluster.Kill(end)
		}
		pause(time.Second)
		cluster.Start(round % replicas)
		hosts.end(1, syscall.SIGTERM) // a rolling restart
		hosts.start()
	}
	close(over)
	load.Wait()
	away(false)

	stream, err := r.js.Stream(t.Context(), "HOST_STATE")
	must(t, err)
	ledger := func() (written map[string]map[string]string, letters, rejected map[string]int) {
		written, letters, rejected = make(map[string]map[string]string), make(map[string]int), make(map[string]int)
		for _, id := range ids {
			rec, err := h.Get(t.Context(), id)
			if err != nil {
				continue
			}
			prefix := "$host.state.w-" + id + ".kv." + rec.UID + "."
			info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(prefix+">"))
			if err != nil {
				continue
			}
			topic := strings.TrimRight(id, "12")
			if written[topic] == nil {
				written[topic] = make(map[string]string)
			}
			for subject := range info.State.Subjects {
				m, err := stream.GetLastMsgForSubject(t.Context(), subject)
				if err == nil {
					written[topic][id+" "+strings.TrimPrefix(subject, prefix)] = string(m.Data)
				}
			}
			found, err := h.DeadLetters(t.Context(), id, 0, 10_000)
			if err == nil {
				letters[topic] += len(found)
				for _, d := range found {
					if d.Reason == "rejected: poison" {
						rejected[topic]++
					}
				}
			}
		}
		return written, letters, rejected
	}
	count := func(of map[string]string) (messages, total int) {
		for key, v := range of {
			n, _ := strconv.Atoi(v)
			switch {
			case strings.HasSuffix(key, " n"):
				total += n
			case strings.Contains(key, " m/"):
				messages++
			}
		}
		return messages, total
	}
	var written map[string]map[string]string
	var letters, rejected map[string]int
	most, deadline := 0, time.Now().Add(2*bound) // without any progress
	for settled := false; !settled && time.Now().Before(deadline); {
		time.Sleep(500 * time.Millisecond)
		written, letters, rejected = ledger()
		settled = true
		sum := 0
		for _, topic := range topics {
			messages, _ := count(written[topic])
			settled = settled && messages+letters[topic] >= sent[topic]
			sum += messages + letters[topic]
		}
		if sum > most {
			most, deadline = sum, time.Now().Add(2*bound)
		}
	}
	var faults []error
	for _, topic := range topics {
		messages, total := count(written[topic])
		t.Logf("work.%s: %d sent, %d handled, %d dead letters (%d rejected), counter %d", topic, sent[topic], messages, letters[topic], rejected[topic], total)
		if messages+letters[topic] != sent[topic] || letters[topic] != rejected[topic] {
			faults = append(faults, fmt.Errorf("work.%s: lost or given up: %d sent, %d handled, %d dead letters, %d of them rejected; %s", topic, sent[topic], messages, letters[topic], rejected[topic], r.whereabouts(topic, sent[topic], written[topic])))
		}
		if total != messages {
			faults = append(faults, fmt.Errorf("work.%s: a stale or second write: the counter is %d after %d messages", topic, total, messages))
		}
		for key, v := range written[topic] {
			if strings.Contains(key, " m/") && v != "1" {
				faults = append(faults, fmt.Errorf("work.%s: %s was counted %s times", topic, key, v))
			}
		}
	}
	for _, id := range ids {
		committed := make(map[string]string)
		for key, v := range written[strings.TrimRight(id, "12")] {
			if message, is := strings.CutPrefix(key, id+" o/"); is {
				committed[message] = v
			}
		}
		faults = append(faults, r.compare("FAR", "far."+id, committed)...)
	}
	faults = append(faults, r.fired(func() map[string]string {
		all := make(map[string]string)
		written, _, _ = ledger()
		for _, of := range written {
			maps.Copy(all, of)
		}
		return all
	})...)
	must(t, errors.Join(faults...))
}

// compare returns how the messages of a subject differ from those that were committed,
// by message: each once, in the order of the messages.
func (r *rig) compare(stream, subject string, committed map[string]string) (faults []error) {
	r.t.Helper()
	published := func() (all []string) {
		s, err := r.js.Stream(r.t.Context(), stream)
		must(r.t, err)
		for seq := uint64(1); ; {
			m, err := s.GetMsg(r.t.Context(), seq, jetstream.WithGetMsgSubject(subject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return all
			}
			must(r.t, err)
			all = append(all, string(m.Data))
			seq = m.Sequence + 1
		}
	}
	var all []string
	for most, deadline := -1, time.Now().Add(bound); ; time.Sleep(200 * time.Millisecond) { // without any progress
		if all = published(); len(all) > most {
			most, deadline = len(all), time.Now().Add(bound)
		}
		if len(all) >= len(committed) || time.Now().After(deadline) {
			break
		}
	}
	seen, last := make(map[string]bool), -1
	for _, output := range all {
		message, _, _ := strings.Cut(output, " ")
		n, _ := strconv.Atoi(message)
		switch {
		case committed[message] != output:
			faults = append(faults, fmt.Errorf("%s: %q was published, %q was committed", subject, output, committed[message]))
		case seen[message]:
			faults = append(faults, fmt.Errorf("%s: %q was published twice", subject, output))
		case n < last:
			faults = append(faults, fmt.Errorf("%s: %q was published after message %d", subject, output, last))
		}
		seen[message], last = true, n
	}
	if len(seen) != len(committed) {
		faults = append(faults, fmt.Errorf("%s: %d outputs were published, %d committed", subject, len(seen), len(committed)))
	}
	r.t.Logf("%s: %d outputs, %d committed", subject, len(all), len(committed))
	return faults
}
