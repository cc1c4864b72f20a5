package workflow_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// beforeSplice is the last commit whose writes store the program's struct as a whole.
const beforeSplice = "7b9c61d26addf056f6bb58e4ad90458fd4d8c2f1"

// flightsEach is how many entities each workflow has, so that writers collide.
const flightsEach = 6

// slot is a place for one process: a release that is killed and started again.
type slot struct {
	name, program, generation string
	kinds                     []string

	cmd   *exec.Cmd
	read  sync.WaitGroup
	kills int
}

// releases is what the processes said, by writer, and by workflow and entity.
type releases struct {
	mu                      sync.Mutex
	counted, maybe, refused map[string]int // "one plain 3"
	timed                   map[string]bool
}

// TestReleasesSideBySide runs three programs on one bucket, which are killed again and
// again, as is the server: one built with the library of before this, one of the first
// release of a program, and one of its next release with more fields at every depth.
//
// Of each workflow, other programs write:
//
//   - library: before and one. The release of the library alone loses nothing.
//   - fields: one and two. Two releases of a program with this library lose nothing.
//   - raised: all three, and two raises the version. No program loses anything: the older
//     library refuses the records that two has written.
//   - plain: all three, without another version. No new program loses anything. The older
//     library drops what it does not know, and nothing else does: the test sees it happen.
func TestReleasesSideBySide(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it builds a program with an older library, and kills processes")
	}
	length := 15 * time.Second
	if n, err := strconv.Atoi(os.Getenv("BESIDE_SECONDS")); err == nil {
		length = time.Duration(n) * time.Second
	}
	programs := t.TempDir()
	before, now := filepath.Join(programs, "before"), filepath.Join(programs, "now")
	buildBefore(t, before)
	build(t, ".", now)

	c := brokertest.StartCluster(t, 1)
	b := brokertest.Connect(t, broker.Config{URL: c.URL(), ReconnectWait: 20 * time.Millisecond, Buckets: []jetstream.KeyValueConfig{workflow.Bucket("FLIGHTS")}})
	ctx, cancel := context.WithTimeout(context.Background(), length+5*time.Minute)
	defer cancel()
	// The test reads every revision, also when it is slower than the writers.
	s, err := b.JetStream().Stream(ctx, "KV_FLIGHTS")
	must(t, err)
	deep := s.CachedInfo().Config
	deep.MaxMsgsPerSubject = 1000
	_, err = b.JetStream().UpdateStream(ctx, deep)
	must(t, err)
	lost := watchLosses(t, s)

	said := &releases{counted: map[string]int{}, maybe: map[string]int{}, refused: map[string]int{}, timed: map[string]bool{}}
	slots := []*slot{
		{name: "before", program: before, generation: "1", kinds: []string{"library", "raised", "plain"}},
		{name: "one", program: now, generation: "1", kinds: []string{"library", "fields", "raised", "plain"}},
		{name: "two", program: now, generation: "2", kinds: []string{"fields", "raised", "plain"}},
	}
	for _, s := range slots {
		said.start(t, s, c.URL())
	}
	defer func() {
		for _, s := range slots {
			s.kill()
		}
	}()
	for began, next := time.Now(), 5*time.Second; time.Since(began) < length && !t.Failed(); {
		time.Sleep(300*time.Millisecond + rand.N(time.Second))
		if time.Since(began) > next {
			next += 10 * time.Second
			c.Kill(0)
			c.StartAll()
		}
		s := slots[rand.IntN(len(slots))]
		s.kill()
		said.start(t, s, c.URL())
	}
	brokertest.Await(t, "each release to have written to each of its workflows", func() bool { return said.all(slots) || t.Failed() })
	for _, s := range slots {
		s.kill()
	}

	losses := lost(t)
	seen := 0
	for _, l := range losses {
		if l.kind == "plain" && l.writer == "before" {
			seen++
			continue
		}
		t.Errorf("%s of %s wrote revision %d of %s %s without %s", l.writer, l.kind, l.revision, l.kind, l.id, l.member)
	}
	if seen == 0 {
		t.Error("the older library dropped nothing: this test would not see a loss")
	}
	said.check(t, ctx, b, slots)
	total := 0
	for _, n := range said.counted {
		total += n
	}
	t.Logf("%d counted writes were acknowledged; %d kills; in %d revisions the older library dropped what it does not know; lost otherwise: 0", total, slots[0].kills+slots[1].kills+slots[2].kills, seen)
}

// build builds the program of testdata/beside.
func build(t *testing.T, dir, to string, flags ...string) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-o", to}, flags...), "./testdata/beside")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// buildBefore builds it with the library of an older commit.
func buildBefore(t *testing.T, to string) {
	t.Helper()
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skip("it needs the repository's history, and this is no checkout: ", err)
	}
	var archive bytes.Buffer
	git := exec.Command("git", "archive", "--format=tar", beforeSplice)
	git.Dir, git.Stdout = strings.TrimSpace(string(top)), &archive
	if err := git.Run(); err != nil {
		t.Skip("it needs the repository's history, and this checkout does not have the commit: ", err)
	}
	tree := t.TempDir()
	tar := exec.Command("tar", "-x", "-C", tree)
	tar.Stdin = &archive
	must(t, tar.Run())
	dir := filepath.Join(tree, "fleet", "workflow")
	must(t, os.CopyFS(filepath.Join(dir, "testdata", "beside"), os.DirFS(filepath.Join("testdata", "beside"))))
	build(t, dir, to, "-tags=before")
}

func (said *releases) start(t *testing.T, s *slot, url string) {
	t.Helper()
	s.cmd = exec.Command(s.program)
	s.cmd.Env = append(os.Environ(), "URL="+url, "WRITER="+s.name, "GENERATION="+s.generation, "KINDS="+strings.Join(s.kinds, ","), fmt.Sprintf("ENTITIES=%d", flightsEach))
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	must(t, s.cmd.Start())
	s.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !said.hear(s.name, lines.Text()) {
				t.Errorf("%s said: %s", s.name, lines.Text())
				return
			}
		}
	})
}

func (s *slot) kill() {
	_ = s.cmd.Process.Kill()
	s.read.Wait() // what it has printed counts
	_ = s.cmd.Wait()
	s.kills++
}

// hear notes a line. It returns false for a line that no release may print.
func (said *releases) hear(writer, line string) bool {
	verb, what, _ := strings.Cut(line, " ")
	said.mu.Lock()
	defer said.mu.Unlock()
	switch of := writer + " " + what; verb {
	case "counted":
		said.counted[of]++
	case "unknown":
		said.maybe[of]++
	case "timed":
		said.timed[what] = true
	case "wrote":
	case "refused": // an older library does that to a newer version
		said.refused[of]++
		return writer == "before"
	default:
		return false
	}
	return true
}

// all reports whether every release has counted in every entity that it may write.
func (said *releases) all(slots []*slot) bool {
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, s := range slots {
		for _, kind := range s.kinds {
			for i := range flightsEach {
				of := fmt.Sprintf("%s %s %d", s.name, kind, i)
				if said.counted[of] == 0 && said.refused[of] == 0 {
					return false
				}
			}
		}
	}
	return true
}

// flight is a record, as far as this test knows it.
type flight struct {
	kind string

	ID      string           `json:"entity_id" lifecycle:"id"`
	State   string           `json:"phase" lifecycle:"phase"`
	Writer  string           `json:"writer"`
	Tally   map[string]int64 `json:"tally"`
	Battery map[string]int64 `json:"battery"`
	Crew    []struct {
		Trips int64            `json:"trips"`
		Hours map[string]int64 `json:"hours"`
	} `json:"crew"`
	Site struct {
		Visits int64            `json:"visits"`
		Seen   map[string]int64 `json:"seen"`
	} `json:"site"`
}

func (f *flight) EntityID() string       { return f.ID }
func (f *flight) Workflow() string       { return f.kind }
func (f *flight) Phase() string          { return f.State }
func (f *flight) IsTerminal() bool       { return false }
func (f *flight) KVBucket() string       { return "FLIGHTS" }
func (f *flight) KVKey(id string) string { return f.kind + "." + id }
func (f *flight) ParentEntityID() string { return "" }

// check compares the stored records with what was acknowledged.
func (said *releases) check(t *testing.T, ctx context.Context, b *broker.Broker, slots []*slot) {
	t.Helper()
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer m.Close()
	for _, kind := range []string{"library", "fields", "raised", "plain"} {
		must(t, m.Register(kind, func() workflow.Participant { return &flight{kind: kind} }, workflow.Transitions{"idle": {"gone"}, "gone": {}}))
		for i := range flightsEach {
			rec, err := m.Find(ctx, kind, strconv.Itoa(i))
			must(t, err)
			f, ok := rec.Participant.(*flight)
			if !ok {
				t.Fatalf("%s %d: %v", kind, i, rec.Degraded)
			}
			what := fmt.Sprintf("%s %d", kind, i)
			var all, trips int64
			for _, s := range slots {
				of := s.name + " " + what
				n, acknowledged := f.Tally[s.name], int64(said.counted[of])
				// A process that was killed may have had two writes whose answer it did not print.
				if n < acknowledged || n > acknowledged+int64(said.maybe[of]+2*s.kills) {
					t.Errorf("%s has counted %d changes of %s, %d were acknowledged", s.name, n, what, acknowledged)
				}
				all += n
			}
			for _, member := range f.Crew {
				trips += member.Trips
			}
			if trips != all || f.Site.Visits != all {
				t.Errorf("%s: %d changes, %d trips, %d visits", what, all, trips, f.Site.Visits)
			}
			if kind != "plain" {
				f.checkTwo(t, what)
			}
			if timers := rec.Timers; kind != "plain" && said.timed[what] && (len(timers) != 1 || timers[0].At.IsZero()) {
				t.Errorf("%s has the timers %+v", what, timers)
			}
		}
	}
}

// checkTwo compares the counts of the second release, which it keeps in members that the
// first does not know.
func (f *flight) checkTwo(t *testing.T, what string) {
	t.Helper()
	const beyond = 1 << 53
	own := func(counts map[string]int64) int64 { return max(counts["two"]-beyond, 0) }
	hours := int64(0)
	for _, member := range f.Crew {
		hours += own(member.Hours)
	}
	if n := f.Tally["two"]; own(f.Battery) != n || own(f.Site.Seen) != n || hours != n {
		t.Errorf("%s: of %d changes of the second release the battery has %d, the site %d and the crew %d", what, n, own(f.Battery), own(f.Site.Seen), hours)
	}
}

// loss is a revision that has less than the one before.
type loss struct {
	kind, id, writer, member string
	revision                 uint64
}

// watchLosses compares each revision with the one before of its entity: every member
// stays, and no number falls. The result waits for the last one and returns what was lost.
func watchLosses(t *testing.T, s jetstream.Stream) func(*testing.T) []loss {
	t.Helper()
	var mu sync.Mutex
	var losses []loss
	last := make(map[string]map[string]any)
	reached := uint64(0)
	consumer, err := s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	must(t, err)
	reading, err := consumer.Consume(func(msg jetstream.Msg) {
		meta, err := msg.Metadata()
		if err != nil {
			t.Error(err)
			return
		}
		var record map[string]any
		numbers := json.NewDecoder(bytes.NewReader(msg.Data()))
		numbers.UseNumber()
		if err := numbers.Decode(&record); err != nil {
			t.Errorf("%s: %v", msg.Subject(), err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		reached = meta.Sequence.Stream
		if before := last[msg.Subject()]; before != nil {
			if member := shrunk(before, record); member != "" {
				key := strings.Split(msg.Subject(), ".")
				losses = append(losses, loss{key[2], key[3], fmt.Sprint(record["writer"]), member, reached})
			}
		}
		last[msg.Subject()] = record
	})
	must(t, err)
	t.Cleanup(reading.Stop)
	return func(t *testing.T) []loss {
		t.Helper()
		var info *jetstream.StreamInfo
		brokertest.Await(t, "the server, which was killed a moment ago", func() bool {
			var err error
			info, err = s.Info(t.Context())
			return err == nil
		})
		brokertest.Await(t, "every revision to be read", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return reached >= info.State.LastSeq
		})
		reading.Stop()
		<-reading.Closed()
		return losses
	}
}

// shrunk returns the path of a member that after lacks, or whose number has fallen, ""
// for none. Elements of lists keep their place.
func shrunk(before, after any) string {
	switch was := before.(type) {
	case map[string]any:
		is, _ := after.(map[string]any)
		for name, value := range was {
			now, ok := is[name]
			if !ok {
				return name
			}
			if path := shrunk(value, now); path != "" {
				return name + "." + path
			}
		}
	case []any:
		is, _ := after.([]any)
		for i, value := range was {
			if i >= len(is) {
				return strconv.Itoa(i)
			}
			if path := shrunk(value, is[i]); path != "" {
				return strconv.Itoa(i) + "." + path
			}
		}
	case json.Number:
		is, _ := after.(json.Number)
		a, _ := was.Int64()
		b, err := is.Int64()
		if err != nil || b < a {
			return fmt.Sprintf("%s, now %q", was, is)
		}
	}
	return ""
}
