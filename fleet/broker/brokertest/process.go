package brokertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// serverEnv is the environment variable with the configuration of a server process.
const serverEnv = "BROKERTEST_SERVER_CONFIG"

// A process that was started as a server runs the server here, before TestMain of the
// tested package.
func init() {
	if conf := os.Getenv(serverEnv); conf != "" {
		if err := serve(conf); err != nil {
			fmt.Fprintln(os.Stderr, "NATS server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// serverConfig is what a server needs to know.
type serverConfig struct {
	Name      string
	Port      int
	RoutePort int    // 0 for a single server
	Routes    string // to all servers, separated by commas
	Dir       string
	Domain    string // of JetStream, "" for none
	LeafPort  int    // where the servers of another cluster connect, 0 for none
	Hub       string // those ports of another cluster to connect to, "" for none
}

func (c serverConfig) log() string { return c.Dir + ".log" }

// serve runs a server until its standard input ends, because the test has closed it or
// has died.
func serve(conf string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(conf), &c); err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: c.Name,
		Host:       "127.0.0.1",
		Port:       c.Port,
		HTTPHost:   "127.0.0.1",
		HTTPPort:   server.RANDOM_PORT,
		JetStream:  true,
		StoreDir:   c.Dir,
		NoSigs:     true,
		Logtime:    true,
	}
	if c.RoutePort != 0 {
		// The servers do not name each other to clients, so that a client whose URL is
		// a proxy cannot bypass it.
		opts.Cluster = server.ClusterOpts{Name: "test" + c.Domain, Host: "127.0.0.1", Port: c.RoutePort, NoAdvertise: true}
		opts.Routes = server.RoutesFromStr(c.Routes)
	}
	opts.JetStreamDomain = c.Domain
	if c.LeafPort != 0 {
		opts.LeafNode.Host, opts.LeafNode.Port = "127.0.0.1", c.LeafPort
	}
	if c.Hub != "" {
		opts.LeafNode.ReconnectInterval = 100 * time.Millisecond
		opts.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: server.RoutesFromStr(c.Hub)}}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	srv.ConfigureLogger()
	srv.Start()
	for end := time.Now().Add(patience); !srv.ReadyForConnections(20 * time.Millisecond); {
		if time.Now().After(end) {
			return fmt.Errorf("the server was not ready within %v", patience)
		}
	}
	fmt.Println("http://" + srv.MonitorAddr().String())
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil
}

// process is a server in a process of its own.
type process struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	monitor string // the URL of its monitoring endpoint
}

// startProcess starts a server and waits until it takes connections.
func startProcess(c serverConfig) (*process, error) {
	conf, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*process, error) {
		text, _ := os.ReadFile(c.log())
		return nil, fmt.Errorf("start NATS server %s on port %d: %w\n%s", c.Name, c.Port, err, text[max(0, len(text)-2000):])
	}
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	binary, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), serverEnv+"="+string(conf))
	cmd.Stderr = log
	cmd.SysProcAttr = ownGroup()
	in, err := cmd.StdinPipe()
	if err != nil {
		return fail(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	p := &process{name: c.Name, cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.kill()
		return fail(err)
	}
	p.monitor = strings.TrimSpace(line)
	return p, nil
}

// stop ends the server in order.
func (p *process) stop() {
	_ = resume(p.cmd.Process) // a paused server would not notice
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// kill ends the server at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
