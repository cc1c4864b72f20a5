//go:build unix

package procpool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	ours "github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/roadrunner-server/pool/ipc/pipe"
	"github.com/roadrunner-server/pool/payload"
	rrpool "github.com/roadrunner-server/pool/pool"
	"github.com/roadrunner-server/pool/pool/static_pool"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// pool is n workers of one kind. In pools that do not share workers among callers
// only one caller at a time uses each worker.
type pool struct {
	// echo returns the answer.
	echo func(payload json.RawMessage) (json.RawMessage, error)
	// stream returns how many messages came, and the bytes in them.
	stream func(payload json.RawMessage) (n, bytes int, err error)
	stop   func()
}

// kind makes a pool and returns when its workers are ready.
type kind struct {
	peer string
	make func(n int) (pool, error)
}

var kinds = []kind{
	{"floor", floorPool},
	{"lifecycle-go", ourPool},
	{"lifecycle-go.bytes", ourBytesPool},
	{"go-plugin", pluginPool},
	{"grpc", grpcPool},
	{"roadrunner", roadRunnerPool},
}

// floorPool gives each caller its own connection, from a channel.
func floorPool(n int) (pool, error) {
	dir, err := os.MkdirTemp("", "floor")
	if err != nil {
		return pool{}, err
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		return pool{}, err
	}
	type member struct {
		conn  net.Conn
		lines *bufio.Reader
		buf   []byte
		cmd   *exec.Cmd
	}
	free := make(chan *member, n)
	for range n {
		cmd := self("floor:" + dir + "/s")
		if err := cmd.Start(); err != nil {
			return pool{}, err
		}
		conn, err := l.Accept()
		if err != nil {
			return pool{}, err
		}
		free <- &member{conn: conn, lines: bufio.NewReaderSize(conn, 64<<10), cmd: cmd}
	}
	read := func(w *member) ([]byte, error) {
		w.buf = w.buf[:0]
		for {
			part, err := w.lines.ReadSlice('\n')
			w.buf = append(w.buf, part...)
			if err != bufio.ErrBufferFull { //nolint:errorlint // it comes unwrapped
				return w.buf, err
			}
		}
	}
	return pool{
		echo: func(p json.RawMessage) (json.RawMessage, error) {
			w := <-free
			defer func() { free <- w }()
			if _, err := w.conn.Write(p); err != nil {
				return nil, err
			}
			return read(w)
		},
		stream: func(p json.RawMessage) (n, size int, err error) {
			w := <-free
			defer func() { free <- w }()
			if _, err := w.conn.Write(p); err != nil {
				return 0, 0, err
			}
			for range streamed + 1 {
				got, err := read(w)
				if err != nil {
					return n, size, err
				}
				n, size = n+1, size+len(got)
			}
			return n - 1, size, nil
		},
		stop: func() {
			for range n {
				w := <-free
				w.conn.Close()
				_ = w.cmd.Wait()
			}
			l.Close()
			os.RemoveAll(dir)
		},
	}, nil
}

func ourPool(n int) (pool, error) { return ourPoolOf(n, self("lifecycle-go")) }

func ourPoolOf(n int, cmd *exec.Cmd) (pool, error) {
	p, err := startOurs(n, cmd)
	if err != nil {
		return pool{}, err
	}
	ctx := context.Background()
	return pool{
		echo: func(q json.RawMessage) (json.RawMessage, error) { return p.Do(ctx, q) },
		stream: func(payload json.RawMessage) (n, size int, err error) {
			q, err := p.Submit(ctx, payload)
			if err != nil {
				return 0, 0, err
			}
			for m, err := range q.Messages() {
				if err != nil {
					return n, size, err
				}
				n, size = n+1, size+len(m)
			}
			return n, size, nil
		},
		stop: func() { _ = p.Stop(ctx) },
	}, nil
}

func ourBytesPool(n int) (pool, error) { return ourBytesPoolOf(n, self("lifecycle-go")) }

// ourBytesPoolOf sends the payload as bytes. Like the floor, the caller reads the answers
// into the same memory each time, and so does the worker; see child.ReuseBytes.
func ourBytesPoolOf(n int, cmd *exec.Cmd) (pool, error) {
	p, err := startOurs(n, cmd)
	if err != nil {
		return pool{}, err
	}
	ctx := context.Background()
	free := make(chan []byte, n)
	for range n {
		free <- nil
	}
	return pool{
		echo: func(q json.RawMessage) (json.RawMessage, error) {
			buf := <-free
			if len(buf) <= len(q) {
				buf = make([]byte, len(q)+1)
			}
			_, answer, err := p.DoBytes(ctx, nil, q, ours.Into(buf))
			free <- buf
			return answer, err
		},
		stream: func(payload json.RawMessage) (n, size int, err error) {
			q, err := p.Submit(ctx, json.RawMessage("null"), ours.Bytes(payload))
			if err != nil {
				return 0, 0, err
			}
			for part, err := range q.Parts() {
				if err != nil {
					return n, size, err
				}
				n, size = n+1, size+len(part.Bytes)
			}
			return n, size, nil
		},
		stop: func() { _ = p.Stop(ctx) },
	}, nil
}

// startOurs returns a pool of n workers that are ready.
func startOurs(n int, cmd *exec.Cmd) (*ours.Pool, error) {
	p, err := ours.New(ours.Config{
		Command: func() *exec.Cmd { return &exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env} }, MinWorkers: n, MaxWorkers: n, MaxQueue: 1000,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	if err := p.Start(context.Background()); err != nil {
		return nil, err
	}
	_, err = p.Await(context.Background(), func(s worker.Status) bool { return s != worker.StatusStarting })
	return p, err
}

// rpcWorker is a process with a gRPC service, and its connection.
type rpcWorker struct {
	conn *grpc.ClientConn
	stop func()
}

// pluginPool returns one plugin process for each worker.
func pluginPool(n int) (pool, error) {
	free := make(chan rpcWorker, n)
	for range n {
		client := plugin.NewClient(&plugin.ClientConfig{
			HandshakeConfig: handshake, Plugins: plugin.PluginSet{"echo": echoPlugin{}}, Cmd: self("go-plugin"),
			AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(), GRPCDialOptions: largeCalls,
		})
		protocol, err := client.Client()
		if err != nil {
			return pool{}, err
		}
		raw, err := protocol.Dispense("echo")
		if err != nil {
			return pool{}, err
		}
		conn, ok := raw.(*grpc.ClientConn)
		if !ok {
			return pool{}, fmt.Errorf("it is a %T", raw)
		}
		free <- rpcWorker{conn, client.Kill}
	}
	return rpcPool(free), nil
}

var largeCalls = []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20))}

// grpcPool has a gRPC server on a unix socket for each worker.
func grpcPool(n int) (pool, error) {
	free := make(chan rpcWorker, n)
	for range n {
		dir, err := os.MkdirTemp("", "grpc")
		if err != nil {
			return pool{}, err
		}
		cmd := self("grpc:" + dir + "/s")
		in, err := cmd.StdinPipe()
		if err != nil {
			return pool{}, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return pool{}, err
		}
		if err := cmd.Start(); err != nil {
			return pool{}, err
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return pool{}, err
		}
		conn, err := grpc.NewClient("unix:"+dir+"/s", append(largeCalls, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return pool{}, err
		}
		free <- rpcWorker{conn, func() {
			conn.Close()
			in.Close()
			_ = cmd.Wait()
			os.RemoveAll(dir)
		}}
	}
	return rpcPool(free), nil
}

// rpcPool gives each caller its own worker.
func rpcPool(free chan rpcWorker) pool {
	ctx := context.Background()
	return pool{
		echo: func(p json.RawMessage) (json.RawMessage, error) {
			w := <-free
			defer func() { free <- w }()
			out := new(wrapperspb.BytesValue)
			err := w.conn.Invoke(ctx, "/bench.Echo/Echo", &wrapperspb.BytesValue{Value: p}, out)
			return out.GetValue(), err
		},
		stream: func(p json.RawMessage) (n, size int, err error) {
			w := <-free
			defer func() { free <- w }()
			s, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/bench.Echo/Stream")
			if err == nil {
				err = errors.Join(s.SendMsg(&wrapperspb.BytesValue{Value: p}), s.CloseSend())
			}
			for err == nil {
				out := new(wrapperspb.BytesValue)
				if err = s.RecvMsg(out); err == nil {
					n, size = n+1, size+len(out.GetValue())
				}
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n - 1, size, err
		},
		stop: func() {
			for range cap(free) {
				(<-free).stop()
			}
		},
	}
}

func roadRunnerPool(n int) (pool, error) {
	ctx := context.Background()
	log := zap.NewNop()
	p, err := static_pool.NewPool(ctx, func([]string) *exec.Cmd { return self("roadrunner") }, pipe.NewPipeFactory(log), &rrpool.Config{
		NumWorkers: uint64(n), AllocateTimeout: time.Minute, DestroyTimeout: time.Minute,
	}, log)
	if err != nil {
		return pool{}, err
	}
	exec := func(q json.RawMessage) (n, size int, last []byte, err error) {
		answers, err := p.Exec(ctx, &payload.Payload{Body: q}, make(chan struct{}))
		if err != nil {
			return 0, 0, nil, err
		}
		for a := range answers {
			if a.Error() != nil {
				return n, size, nil, a.Error()
			}
			last = a.Body()
			n, size = n+1, size+len(last)
		}
		return n - 1, size, last, nil
	}
	return pool{
		echo: func(q json.RawMessage) (json.RawMessage, error) {
			_, _, last, err := exec(q)
			return last, err
		},
		stream: func(q json.RawMessage) (n, size int, err error) {
			n, size, _, err = exec(q)
			return n, size, err
		},
		stop: func() { p.Destroy(ctx) },
	}, nil
}

// value returns a JSON string of that many bytes.
func value(size int, begin string) json.RawMessage {
	return append(append([]byte(`"`+begin), bytes.Repeat([]byte("x"), size-2-len(begin))...), '"')
}

// question returns the request to a peer: its payload, or the line for the floor.
func question(k kind, v json.RawMessage) json.RawMessage {
	if k.peer == "floor" {
		return line(v)
	}
	return v
}

func TestPeersDoTheWork(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.peer, func(t *testing.T) {
			p, err := k.make(2)
			if err != nil {
				t.Fatal(err)
			}
			defer p.stop()
			q := question(k, value(4096, ""))
			if got, err := p.echo(q); err != nil || !bytes.Equal(got, q) {
				t.Errorf("it answers %.50q, %v", got, err)
			}
			if n, _, err := p.stream(question(k, value(1024, "stream"))); err != nil || n != streamed {
				t.Errorf("it streams %d, %v", n, err)
			}
		})
	}
}
