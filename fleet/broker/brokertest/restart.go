package brokertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Lone is one NATS server in this process, with an open port, that can be
// restarted. What it keeps on disk outlives a restart; what it keeps in memory
// does not.
type Lone struct {
	tb   testing.TB
	opts *server.Options
	srv  *server.Server
}

// StartLone starts one server, which ends with the test.
func StartLone(tb testing.TB) *Lone {
	tb.Helper()
	l := &Lone{tb: tb, opts: &server.Options{Host: "127.0.0.1", Port: freePorts(tb, 1)[0], JetStream: true, StoreDir: tb.TempDir(), NoSigs: true, NoLog: true}}
	l.start()
	tb.Cleanup(l.stop)
	return l
}

// URL is where clients connect, also after a restart.
func (l *Lone) URL() string { return l.srv.ClientURL() }

// Restart stops the server, waits for its end, and starts it again.
func (l *Lone) Restart() { l.RestartAfter(0) }

// RestartAfter is Restart with a pause in which there is no server.
func (l *Lone) RestartAfter(pause time.Duration) {
	l.tb.Helper()
	l.stop()
	time.Sleep(pause)
	l.start()
}

func (l *Lone) start() {
	l.tb.Helper()
	var err error
	if l.srv, err = server.NewServer(l.opts.Clone()); err != nil {
		l.tb.Fatal(err)
	}
	l.srv.Start()
	if !l.srv.ReadyForConnections(patience) {
		l.tb.Fatal("the server takes no connections")
	}
}

func (l *Lone) stop() {
	l.srv.Shutdown()
	l.srv.WaitForShutdown()
}
