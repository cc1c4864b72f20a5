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

// Cluster is a number of NATS servers in processes of their own, with real routes on
// the loopback. A Cluster of one is a single server. All methods may be called
// concurrently, except that methods that change one server must not run at the same
// time.
type Cluster struct {
	tb   testing.TB
	dir  string
	http http.Client

	confs   []serverConfig
	mu      sync.Mutex // guards everything below
	servers []*process // nil for one that does not run
}

// StartCluster starts n servers that know each other and waits until JetStream has a
// leader. The servers end with the test in any case. They leave it to the operating
// system to flush writes. A kill loses none, since the system still has them.
func StartCluster(tb testing.TB, n int) *Cluster {
	tb.Helper()
	return startCluster(tb, n, "", "")
}

// StartRegions starts a cluster of n servers, the hub, and one of m, the region, whose
// servers are leaf nodes of the hub. Their JetStreams are of the domains "hub" and
// "region": each goes on without the other.
func StartRegions(tb testing.TB, n, m int) (hub, region *Cluster) {
	tb.Helper()
	hub = startCluster(tb, n, "hub", "")
	var leaves []string
	for _, conf := range hub.confs {
		leaves = append(leaves, "nats://127.0.0.1:"+strconv.Itoa(conf.LeafPort))
	}
	return hub, startCluster(tb, m, "region", strings.Join(leaves, ","))
}

func startCluster(tb testing.TB, n int, domain, hub string) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, dir: tb.TempDir(), http: http.Client{Timeout: time.Second}, servers: make([]*process, n)}
	ports := freePorts(tb, 3*n)
	var routes []string
	for i := range n {
		routes = append(routes, "nats://127.0.0.1:"+strconv.Itoa(ports[n+i]))
	}
	for i := range n {
		conf := serverConfig{Name: fmt.Sprintf("n%d", i+1), Port: ports[i], Dir: filepath.Join(c.dir, strconv.Itoa(i))}
		if conf.Domain, conf.Hub = domain, hub; domain != "" {
			conf.Name = domain + conf.Name
		}
		if domain == "hub" {
			conf.LeafPort = ports[2*n+i]
		}
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

// URL returns the URLs of all servers, separated by commas.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.confs))
	for i, conf := range c.confs {
		urls[i] = "nats://127.0.0.1:" + strconv.Itoa(conf.Port)
	}
	return strings.Join(urls, ",")
}

// Dir returns the directory in which each server has a folder for its data.
func (c *Cluster) Dir() string { return c.dir }

// Stop lets server i shut down by itself. It does nothing when the server is down.
func (c *Cluster) Stop(i int) { c.end(i, (*process).stop) }

// Kill ends server i at once, as kill -9 does. It does nothing when the server is down.
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

// Pause stops server i with SIGSTOP: the server keeps its connections and answers
// nothing. Pause does nothing on a system without that signal, and when the server is
// down.
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

// Start starts server i again, on its stored data, and waits until it takes
// connections. It does nothing when the server runs.
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

// StartAll starts every server that does not run, and waits until JetStream has a
// leader that sees all servers.
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

// Leader returns the number of the server that leads a stream, or -1 while no running
// server does. The stream of a bucket is "KV_" and the bucket's name.
func (c *Cluster) Leader(stream string) int {
	for _, p := range c.live() {
		var is jsz
		if !c.ask(p, "/jsz?acc=$G&streams=true", &is) {
			continue // it is down or paused
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

// jsz has the needed fields of a server's monitoring endpoint /jsz.
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

// ask reads a monitoring endpoint into answer. It returns false when that fails.
func (c *Cluster) ask(p live, path string, answer any) bool {
	resp, err := c.http.Get(p.monitor + path)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && (answer == nil || json.NewDecoder(resp.Body).Decode(answer) == nil)
}

// logTails shows the last lines of the servers' logs.
func (c *Cluster) logTails() {
	for _, conf := range c.confs {
		text, err := os.ReadFile(conf.log())
		if err == nil {
			c.tb.Logf("the end of the log of server %s:\n%s", conf.Name, text[max(0, len(text)-2000):])
		}
	}
}

// FreeAddr returns an address of the loopback on which no process listened a moment ago,
// for a server that a test begins later or more than once.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	return "127.0.0.1:" + strconv.Itoa(freePorts(tb, 1)[0])
}

// freePorts returns ports that were free a moment ago. They are below the range that
// the system gives to outgoing connections, and of a part that few other processes draw
// from, so a server that starts again finds its port still free.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+os.Getpid()%100*200+rand.N(200)))
		if err != nil {
			continue // taken
		}
		defer l.Close() // keep it open until all are found, so that no port is found twice
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			ports = append(ports, addr.Port)
		}
	}
	tb.Fatalf("%d of %d ports are free", len(ports), n)
	return nil
}
