package brokertest

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
)

// Kind says where the servers of [Server] and [NewSite] run.
type Kind string

// The kinds of servers.
const (
	InProcess Kind = "embedded" // in the process of the test: the default
	Separate  Kind = "process"  // one, in a process of its own
	Clustered Kind = "cluster"  // three, each in a process of its own
)

// KindEnv is the environment variable that names the [Kind], for a whole run of
// tests:
//
//	NATS_TEST_SERVER=cluster go test ./workflow
const KindEnv = "NATS_TEST_SERVER"

// KindOfRun returns the kind of this run of tests.
func KindOfRun(tb testing.TB) Kind {
	tb.Helper()
	switch kind := Kind(os.Getenv(KindEnv)); kind {
	case "", InProcess:
		return InProcess
	case Separate, Clustered:
		return kind
	default:
		tb.Fatalf("%s is %q, want %s, %s or %s", KindEnv, kind, InProcess, Separate, Clustered)
		return ""
	}
}

// Server returns a broker on a server of its own, of the kind of this run. Both end with
// the test. In a cluster every bucket and stream has three replicas unless its
// declaration says otherwise.
func Server(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	if KindOfRun(tb) == InProcess {
		return Embedded(tb, cfg)
	}
	return NewSite(tb).Connect(tb, cfg)
}

// Site is a server that a test can stop and start again, or a cluster in a run of that kind.
type Site struct {
	// URL is the server's URL. It stays the same after a Start.
	URL string
	// Dir is where the server stores its data. Change the data only while the server
	// is stopped.
	Dir string

	replicas int
	servers  *Cluster
}

// NewSite starts a server in a process of its own, which listens on the loopback and ends
// with the test.
func NewSite(tb testing.TB) *Site {
	tb.Helper()
	n := 1
	if KindOfRun(tb) == Clustered {
		n = 3
	}
	servers := StartCluster(tb, n)
	return &Site{URL: servers.URL(), Dir: servers.Dir(), replicas: n, servers: servers}
}

// Stop stops the server, or all servers of a cluster.
func (s *Site) Stop() { s.servers.StopAll() }

// Start starts the server again on the data in Dir.
func (s *Site) Start() { s.servers.StartAll() }

// Connect returns a broker on the server and closes it when the test ends. Buckets and
// streams have as many replicas as those of [Server].
func (s *Site) Connect(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	cfg.URL = cmp.Or(cfg.URL, s.URL)
	cfg.ReconnectWait = cmp.Or(cfg.ReconnectWait, 20*time.Millisecond)
	return Connect(tb, replicated(cfg, s.replicas))
}

// replicated returns cfg with n replicas for each bucket and stream that sets none.
func replicated(cfg broker.Config, n int) broker.Config {
	cfg.Buckets, cfg.Streams = slices.Clone(cfg.Buckets), slices.Clone(cfg.Streams)
	for i := range cfg.Buckets {
		if cfg.Buckets[i].Replicas == 0 {
			cfg.Buckets[i].Replicas = n
		}
	}
	for i := range cfg.Streams {
		if cfg.Streams[i].Replicas == 0 {
			cfg.Streams[i].Replicas = n
		}
	}
	return cfg
}

// Again runs tests of this binary once more, in another process and on servers of
// another kind. run and skip select the tests, as the flags -test.run and -test.skip do.
// Again fails t when a test fails or is skipped, or when fewer than atLeast tests pass.
func Again(t *testing.T, kind Kind, run, skip string, atLeast int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary,
		"-test.v", "-test.short="+strconv.FormatBool(testing.Short()), "-test.run="+run, "-test.skip="+skip, "-test.timeout=9m30s")
	cmd.Env = append(os.Environ(), KindEnv+"="+string(kind))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	passed := len(regexp.MustCompile(`(?m)^--- PASS: `).FindAll(out.Bytes(), -1))
	if err != nil || passed < atLeast || strings.Contains(out.String(), "--- SKIP: ") {
		t.Fatalf("on servers of the kind %q: %v, %d tests have passed, want %d and none that is skipped\n%s",
			kind, err, passed, atLeast, &out)
	}
	t.Logf("%d tests have passed on servers of the kind %q", passed, kind)
}
