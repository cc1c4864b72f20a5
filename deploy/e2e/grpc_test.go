package e2e

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// calling returns a typical gRPC client: one channel for its life, no retry
// policy, calls that fail at once when there is no connection. With anew it
// makes a channel for each call.
func calling(anew bool, idle func() time.Duration) client {
	return func(ctx context.Context, addr string, l *ledger) {
		var ch *channel
		defer func() { ch.close() }()
		for range maxRequests {
			if anew {
				ch.close()
				ch = nil
			}
			if ch == nil {
				var err error
				if ch, err = newChannel(addr); err != nil {
					l.enter(answer{sent: time.Now(), conn: "no connection", err: err}, answeredCall)
					return
				}
			}
			l.enter(ch.call(), answeredCall)
			if !pause(ctx, idle()) {
				return
			}
		}
	}
}

// answeredCall is the ledger's entry for a call that was answered, with any
// answer: a health service that drains answers NOT_SERVING.
const answeredCall = 200

// channel is a gRPC channel that knows how often it has connected.
type channel struct {
	conn  *grpc.ClientConn
	dials atomic.Int64
	calls int
	known int64 // dials before the latest call
}

func newChannel(addr string) (*channel, error) {
	c := new(channel)
	var err error
	c.conn, err = grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c.dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}))
	return c, err
}

func (c *channel) close() {
	if c != nil {
		_ = c.conn.Close() // its calls are done
	}
}

func (c *channel) call() (a answer) {
	a.sent = time.Now()
	// Not under the load's context: a request that was sent is awaited.
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	_, a.err = healthpb.NewHealthClient(c.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if a.err == nil {
		a.status = answeredCall
	}
	dials := c.dials.Load()
	a.fresh = dials > c.known
	a.conn = "a channel that was connected before"
	if a.fresh {
		a.conn = "a new gRPC connection"
	}
	a.goodbye = a.fresh && c.calls > 0 // the server had asked it to reconnect
	c.known = dials
	c.calls++
	return a
}

// gRPC's own clients meet the same faults as the others.
func TestCallsAreCounted(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	addr := ln.Addr().String()
	l := calling(false, soon).run(t, addr, sentAtLeast(10))
	if lost, sent := l.lost(); lost != 0 || l.fresh != 1 || l.answered != sent {
		t.Errorf("one channel: %s\n%s", l, l.explain(nil, 3))
	}
	if l := calling(true, soon).run(t, addr, sentAtLeast(5)); l.fresh != l.sent {
		t.Errorf("a channel for each call: %s", l)
	}
	srv.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	l = calling(false, soon).run(t, addr, sentAtLeast(3))
	if lost, sent := l.lost(); lost != sent || !strings.Contains(l.explain(nil, 1), "Unavailable") {
		t.Errorf("the server does not listen: %s\n%s", l, l.explain(nil, 1))
	}
}

// TestRollingRestartsOfGRPC is R11 on a cluster: every call to a gRPC server
// is answered while its pods are replaced.
func TestRollingRestartsOfGRPC(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, deployment{name: "calls", image: c.app, replicas: 3, args: []string{"-grpc=:9090"}})
	d.pods.onStop = c.slow(t)
	d.ready(t)
	way := service("calls-grpc", object{"deployment": "calls"})
	way["spec"].(object)["ports"] = []object{{"port": 9090, "targetPort": 9090}}
	c.apply(t, way)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "service", "calls-grpc", "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	addr := c.nodePort(t, "calls-grpc")
	eventually(t, "an answer by gRPC", func() bool {
		ch, err := newChannel(addr)
		if err != nil {
			return false
		}
		defer ch.close()
		return ch.call().err == nil
	})
	forgetDials(t, addr)
	rounds := 3
	if short() {
		rounds = 1
	}
	for range rounds {
		load := startLoad(t.Context(), addr, d.evidence(t),
			crowd{"gRPC", 12, calling(false, between(0, 300*time.Millisecond))},
			crowd{"gRPC long idle", 6, calling(false, between(5500*time.Millisecond, 9*time.Second))},
			crowd{"gRPC fresh", 3, calling(true, between(20*time.Millisecond, 150*time.Millisecond))})
		pause(t.Context(), 3*time.Second)
		d.restart(t)
		pause(t.Context(), 2*time.Second)
		ledgers := load.stop()
		mustLoseNothing(t, d.pods.stops(), ledgers...)
		mustHaveDrained(t, ledgers[0])
	}
	d.endedWell(t)
}
