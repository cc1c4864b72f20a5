package grpcdrain_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/grpcdrain"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message carries one text.
type message = healthpb.HealthCheckRequest

const (
	watchMethod = "/test.Ticks/Watch" // a stream without an end
	pollMethod  = "/test.Ticks/Poll"  // a unary call without an end
)

// ticks describes a service with handlers that end when they are told to.
func ticks(streamed func(grpc.ServerStream) error, polled func(context.Context) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "test.Ticks", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			if err := s.RecvMsg(new(message)); err != nil {
				return err
			}
			return streamed(s)
		}}},
		Methods: []grpc.MethodDesc{{MethodName: "Poll", Handler: func(_ any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
			in := new(message)
			if err := dec(in); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, _ any) (any, error) { return &message{Service: "polled"}, polled(ctx) }
			if chain == nil {
				return handle(ctx, in)
			}
			return chain(ctx, in, &grpc.UnaryServerInfo{FullMethod: pollMethod}, handle)
		}}},
	}
}

// process is an App with one gRPC server.
type process struct {
	*lifecycle.App
	addr  string
	ended chan error
}

func startProcess(t *testing.T, interceptors bool, streamed func(grpc.ServerStream) error, polled func(context.Context) error) *process {
	t.Helper()
	cfg := lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: 300 * time.Millisecond, AcceptQuiet: 100 * time.Millisecond, Linger: 600 * time.Millisecond,
		ShutdownGrace: time.Minute,
	}
	if !interceptors {
		cfg.HookSlice = 52 * time.Second // streams are cut before, and a busy machine has the time of the hook
	}
	app, err := lifecycle.New(cfg, lifecycle.WithLogger(slog.New(slog.DiscardHandler)), lifecycle.WithSignals(nil))
	if err != nil {
		t.Fatal(err)
	}
	app.OnShutdown("nothing", func(context.Context) error { return nil })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var opts []grpc.ServerOption
	if interceptors {
		opts = grpcdrain.Options(app, "grpc")
	}
	srv, checks := grpc.NewServer(opts...), health.NewServer()
	srv.RegisterService(ticks(streamed, polled), struct{}{})
	healthpb.RegisterHealthServer(srv, checks)
	app.GRPC("grpc", srv, ln, checks)
	p := &process{app, ln.Addr().String(), make(chan error, 1)}
	go func() { p.ended <- app.Run(context.WithoutCancel(t.Context())) }()
	<-app.Reached(lifecycle.PhaseRunning)
	return p
}

// connect dials like a client of many processes: it finds one by pick, each time that it
// connects.
func connect(t *testing.T, pick func() string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///ticks", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", pick())
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func watch(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watchMethod)
	if err != nil {
		return nil, err
	}
	return s, errors.Join(s.SendMsg(&message{Service: "go"}), s.CloseSend())
}

// send writes one message.
func send(s grpc.ServerStream, text string) error { return s.SendMsg(&message{Service: text}) }

// Without the interceptors an endless stream hears nothing: its connection is cut, and
// the stop fails. This is the control of the tests below.
func TestWithoutInterceptorsTheStopFails(t *testing.T) {
	p := startProcess(t, false, func(s grpc.ServerStream) error {
		if lifecycle.Draining(s.Context()) != nil {
			t.Error("Draining works without the interceptors: then this package is not needed")
		}
		_ = send(s, "hello")
		<-s.Context().Done()
		return s.Context().Err()
	}, nil)
	s, err := watch(t.Context(), connect(t, func() string { return p.addr }))
	if err == nil {
		err = s.RecvMsg(new(message))
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Stop(nil)
	if err := s.RecvMsg(new(message)); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	if err := <-p.ended; err == nil || p.Report().CutRequests == 0 {
		t.Errorf("Run returned %v, %d cut", err, p.Report().CutRequests)
	}
}

// An endless stream and a long poll that listen end by themselves, with a last word, and
// Run returns nil.
func TestStreamsThatListenEndTheStop(t *testing.T) {
	polling := make(chan struct{})
	p := startProcess(t, true, func(s grpc.ServerStream) error {
		_ = send(s, "hello")
		select {
		case <-lifecycle.Draining(s.Context()):
			return send(s, "goodbye")
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}, func(ctx context.Context) error {
		close(polling)
		<-lifecycle.Stream(ctx) // a long poll does not end by itself either
		return nil
	})
	conn := connect(t, func() string { return p.addr })
	s, err := watch(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	polled := make(chan error, 1)
	go func() {
		polled <- conn.Invoke(t.Context(), pollMethod, &message{Service: "go"}, new(message))
	}()
	<-polling
	var texts []string
	for {
		m := new(message)
		if err := s.RecvMsg(m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if texts = append(texts, m.Service); len(texts) == 1 {
			p.Stop(nil)
		}
	}
	if len(texts) != 2 || texts[1] != "goodbye" {
		t.Errorf("the stream said %q", texts)
	}
	if err := <-polled; err != nil {
		t.Errorf("the poll ended with %v", err)
	}
	if err := <-p.ended; err != nil || p.Report().CutRequests != 0 {
		t.Errorf("Run returned %v, %d cut", err, p.Report().CutRequests)
	}
}

// Clients of endless streams call again at once when one ends. They find the next
// process: the one that stops is asked by each of them only a few times more.
func TestStreamsMoveToTheNextProcess(t *testing.T) {
	const clients = 20
	var first, second atomic.Int64
	streamed := func(count *atomic.Int64) func(grpc.ServerStream) error {
		return func(s grpc.ServerStream) error {
			count.Add(1)
			_ = send(s, "hello")
			select {
			case <-lifecycle.Draining(s.Context()):
				return nil
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
	}
	a, b := startProcess(t, true, streamed(&first), nil), startProcess(t, true, streamed(&second), nil)
	var moved atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range clients {
		conn := connect(t, func() string {
			if moved.Load() {
				return b.addr
			}
			return a.addr
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := watch(ctx, conn)
				for err == nil {
					err = s.RecvMsg(new(message))
				}
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					t.Errorf("a stream was lost: %v", err)
				}
			}
		})
	}
	for first.Load() < clients {
		time.Sleep(time.Millisecond)
	}
	moved.Store(true)
	a.Stop(nil)
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	for second.Load() < clients {
		time.Sleep(time.Millisecond)
	}
	if n := first.Load(); n > 3*clients {
		t.Errorf("%d clients called the process that stops %d times", clients, n)
	}
	cancel()
	wg.Wait()
	b.Stop(nil)
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
}

// A client that watches grpc's own health service, as client-side health checks do, has
// a stream without an end. It hears NOT_SERVING, and then does not hold the stop.
func TestHealthWatchEndsWithTheStop(t *testing.T) {
	p := startProcess(t, true, nil, nil)
	conn := connect(t, func() string { return p.addr })
	w, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := w.Recv(); err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("before the stop: %v, %v", answer, err)
	}
	p.Stop(nil)
	if answer, err := w.Recv(); err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("at T0: %v, %v", answer, err)
	}
	if answer, err := w.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("at the end: %v, %v, want Unavailable: the client asks again", answer, err)
	}
	if err := <-p.ended; err != nil || p.Report().CutRequests != 0 {
		t.Errorf("Run returned %v, %d cut", err, p.Report().CutRequests)
	}
}
