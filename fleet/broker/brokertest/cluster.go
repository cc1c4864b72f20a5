package brokertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Cluster is NATS servers in processes of their own, with real routes on the
// loopback. One alone is a single server. All methods may be called concurrently,
// those that change a server by one at a time for each server.
type Cluster struct {
	tb   testing.TB
	dir  string
	http http.Client

	confs   []serverConfig
	mu      sync.Mutex // guards everything below
	servers []*process // nil for one that does not run
}

// StartCluster starts n servers that know each other and waits until JetStream
// has a leader. They end with the test in any case. Writes are
// flushed by the operating system, not one by one: a kill takes none of them.
func StartCluster(tb testing.TB, n int) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, dir: tb.TempDir(), http: http.Client{Timeout: time.Second}, servers: make([]*process, n)}
	ports := freePorts(tb, 2*n)
	var routes []string
	for i := range n {
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(ports[n+i]))
	}
	for i := range n {
		conf := serverConfig{Name: fmt.Sprintf("n%d", i+1), Port: ports[i], Dir: filepath.Join(c.dir, strconv.Itoa(i))}
		if n > 1 {
			conf.RoutePort, conf.Routes = ports[n+i], strings.Join(routes, ",")
		}
		c.confs = append(c.confs, conf)
	}
	tb.Cleanup(func() {
		for i := range n {
			c.Kill(i)
		}
		c.http.CloseIdleConnections()
		if tb.Failed() {
			c.logTails()
		}
	})
	c.StartAll()
	return c
}

// URL is that of all servers.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.confs))
	for i, conf := range c.confs {
		urls[i] = "nats://127.0.0.1:" + strconv.Itoa(conf.Port)
	}
	return strings.Join(urls, ",")
}

// Dir is where the servers keep what they store, a folder for each.
func (c *Cluster) Dir() string { return c.dir }

// Stop shuts server i down in order. It does nothing when it is.
func (c *Cluster) Stop(i int) { c.end(i, (*process).stop) }

// Kill ends server i at once, as kill -9 does. It does nothing when it is gone.
func (c *Cluster) Kill(i int) { c.end(i, (*process).kill) }

func (c *Cluster) end(i int, how func(*process)) {
	c.mu.Lock()
	p := c.servers[i]
	c.servers[i] = nil
	c.mu.Unlock()
	if p != nil {
		how(p)
	}
}

// Pause stops server i with SIGSTOP: it keeps its connections and answers
// nothing. It does nothing where the system does not know that signal, and to a
// server that is gone.
func (c *Cluster) Pause(i int) { c.signal(i, pause) }

// Resume lets a paused server go on.
func (c *Cluster) Resume(i int) { c.signal(i, resume) }

func (c *Cluster) signal(i int, send func(*os.Process) error) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.servers[i]; p != nil {
		if err := send(p.cmd.Process); err != nil {
			c.tb.Errorf("signal server %s: %v", p.name, err)
		}
	}
}

// Start starts server i again, on what it had stored, and waits until it takes
// connections. It does nothing when it runs.
func (c *Cluster) Start(i int) {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers[i] != nil {
		return
	}
	p, err := startProcess(c.confs[i])
	if err != nil {
		c.tb.Fatal(err)
	}
	c.servers[i] = p
}

// StopAll shuts every server down.
func (c *Cluster) StopAll() {
	for i := range c.servers {
		c.Stop(i)
	}
}

// StartAll starts every server that does not run, and waits until JetStream has
// a leader that knows all.
func (c *Cluster) StartAll() {
	c.tb.Helper()
	for i := range c.servers {
		c.Start(i)
	}
	Await(c.tb, "a leader of JetStream that knows all servers", func() bool {
		for _, p := range c.live() {
			var is jsz
			if !c.ask(p, "/healthz", nil) || !c.ask(p, "/jsz", &is) {
				return false
			}
			if len(c.confs) > 1 && (is.Meta.Leader == "" || is.Meta.Size != len(c.confs)) {
				return false
			}
		}
		return true
	})
}

// Leader returns the number of the server that leads a stream, -1 while none
// that runs does. A bucket's stream is "KV_" and its name.
func (c *Cluster) Leader(stream string) int {
	for _, p := range c.live() {
		var is jsz
		if !c.ask(p, "/jsz?acc=$G&streams=true", &is) {
			continue // gone, or paused
		}
		for _, account := range is.Accounts {
			for _, s := range account.Streams {
				if s.Name == stream && s.Cluster.Leader == p.name {
					return p.number
				}
			}
		}
	}
	return -1
}

// jsz is what is wanted of a server's monitoring endpoint.
type jsz struct {
	Meta struct {
		Leader string `json:"leader"`
		Size   int    `json:"cluster_size"`
	} `json:"meta_cluster"`
	Accounts []struct {
		Streams []struct {
			Name    string `json:"name"`
			Cluster struct {
				Leader string `json:"leader"`
			} `json:"cluster"`
		} `json:"stream_detail"`
	} `json:"account_details"`
}

// live is a server that runs, with its number.
type live struct {
	*process
	number int
}

func (c *Cluster) live() (all []live) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.servers {
		if p != nil {
			all = append(all, live{p, i})
		}
	}
	return all
}

// ask reads a monitoring endpoint. It reports false when there is no good
// answer.
func (c *Cluster) ask(p live, path string, answer any) bool {
	resp, err := c.http.Get(p.monitor + path)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && (answer == nil || json.NewDecoder(resp.Body).Decode(answer) == nil)
}

// logTails shows the last of what the servers have logged.
func (c *Cluster) logTails() {
	for _, conf := range c.confs {
		text, err := os.ReadFile(conf.log())
		if err == nil {
			c.tb.Logf("the end of the log of server %s:\n%s", conf.Name, text[max(0, len(text)-2000):])
		}
	}
}

// freePorts returns ports that were free a moment ago. They are below those that
// the system gives to connections: a server that is started again finds its own
// still free.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+rand.N(20_000)))
		if err != nil {
			continue // taken
		}
		defer l.Close() // when all are there: none is found twice
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			ports = append(ports, addr.Port)
		}
	}
	tb.Fatalf("%d of %d ports are free", len(ports), n)
	return nil
}
