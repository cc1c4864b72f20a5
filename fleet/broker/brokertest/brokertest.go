// Package brokertest starts NATS servers for tests: embedded ones, with or
// without an open port, and a cluster of three.
package brokertest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
)

// patience bounds what a test waits for on a machine that may be busy.
const patience = 60 * time.Second

// Quiet is a logger that says nothing.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Embedded returns a broker with a server in this process, on a folder of the
// test, which ends with the test. What cfg leaves empty is chosen for speed:
// writes are flushed by the operating system, not one by one.
func Embedded(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	if cfg.StoreDir == "" {
		cfg.StoreDir = tb.TempDir()
	}
	if cfg.Sync == "" {
		cfg.Sync = broker.SyncInterval
	}
	return Connect(tb, cfg)
}

// Connect is [broker.Connect], closed when the test ends.
func Connect(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = Quiet()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := broker.Connect(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = b.Close(ctx) // a test may have taken its server away
	})
	return b
}

// Cluster is a NATS cluster in this process, with real routes on the loopback.
type Cluster struct {
	tb   testing.TB
	opts []*server.Options

	mu      sync.Mutex // guards what follows
	servers []*server.Server
}

// StartCluster starts n servers that know each other and waits until JetStream
// has a leader. They end with the test.
func StartCluster(tb testing.TB, n int) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	ports := freePorts(tb, 2*n)
	routes := ""
	for i := range n {
		routes += ",nats://127.0.0.1:" + strconv.Itoa(ports[n+i])
	}
	dir := tb.TempDir()
	for i := range n {
		c.opts = append(c.opts, &server.Options{
			ServerName: fmt.Sprintf("n%d", i+1),
			Host:       "127.0.0.1", Port: ports[i],
			Cluster:   server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[n+i]},
			Routes:    server.RoutesFromStr(routes[1:]),
			JetStream: true, StoreDir: filepath.Join(dir, strconv.Itoa(i)),
			NoSigs: true, NoLog: true,
		})
	}
	c.servers = make([]*server.Server, n)
	tb.Cleanup(func() {
		for i := range n {
			c.Stop(i)
		}
	})
	for i := range n {
		c.start(i)
	}
	c.await("a leader of JetStream", func() bool {
		for _, s := range c.live() {
			if s.JetStreamIsLeader() {
				return true
			}
		}
		return false
	})
	return c
}

// URL is that of all servers.
func (c *Cluster) URL() string {
	url := ""
	for i, o := range c.opts {
		if i > 0 {
			url += ","
		}
		url += "nats://127.0.0.1:" + strconv.Itoa(o.Port)
	}
	return url
}

// Stop shuts server i down. It does nothing when it is.
func (c *Cluster) Stop(i int) {
	c.mu.Lock()
	srv := c.servers[i]
	c.servers[i] = nil
	c.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Start starts server i again, on what it had stored.
func (c *Cluster) Start(i int) {
	c.tb.Helper()
	c.start(i)
}

func (c *Cluster) start(i int) {
	c.tb.Helper()
	srv, err := server.NewServer(c.opts[i].Clone())
	if err != nil {
		c.tb.Fatal(err)
	}
	c.mu.Lock()
	c.servers[i] = srv
	c.mu.Unlock()
	srv.Start()
	c.await("server "+srv.Name(), func() bool { return srv.ReadyForConnections(10 * time.Millisecond) })
}

// Leader returns the number of the server that leads a stream, -1 while nobody
// does. A bucket's stream is "KV_" and its name.
func (c *Cluster) Leader(stream string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.servers {
		if s != nil && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

func (c *Cluster) live() (live []*server.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if s != nil {
			live = append(live, s)
		}
	}
	return live
}

func (c *Cluster) await(what string, is func() bool) {
	c.tb.Helper()
	Await(c.tb, what, is)
}

// Await waits until is is true and fails the test when that takes a minute.
func Await(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// freePorts returns ports that were free a moment ago.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

