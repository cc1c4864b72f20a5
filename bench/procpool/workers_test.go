//go:build unix

package procpool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"github.com/pleme-io/lifecycle-go/procpool/child"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/roadrunner-server/goridge/v3/pkg/frame"
	"github.com/roadrunner-server/goridge/v3/pkg/pipe"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Every worker is this test binary, started again. They all do the same: they return the
// payload, and before that send it streamed times when it begins with "stream".
const workerEnv = "BENCH_PROCPOOL_WORKER"

const streamed = 1000

func TestMain(m *testing.M) {
	switch mode, path, _ := strings.Cut(os.Getenv(workerEnv), ":"); mode {
	case "":
		goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/roadrunner-server/events.(*Bus).handleEvents")) // the goroutine never ends
	case "floor":
		serveFloor(path)
	case "started":
		fmt.Println("started")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "lifecycle-go":
		if err := child.Serve(context.Background(), echo, child.ReuseBytes()); err != nil {
			panic(err)
		}
	case "go-plugin":
		servePlugin()
	case "raw":
		serveRaw(path)
	case "grpc":
		serveGRPC(path)
	case "roadrunner":
		serveRoadRunner()
	}
}

func self(mode string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), workerEnv+"="+mode)
	return cmd
}

// Payloads of BenchmarkPoison.
var work, die = json.RawMessage(`"work"`), []byte(`"die`)

var discard = slog.New(slog.DiscardHandler)

func wantsStream(payload []byte) bool { return bytes.HasPrefix(payload, []byte(`"stream`)) }

func echo(_ context.Context, q *child.Query) (any, error) {
	switch {
	case q.Bytes != nil && wantsStream(q.Bytes):
		for range streamed {
			if err := q.Send(child.Data{Bytes: q.Bytes}); err != nil {
				return nil, err
			}
		}
		fallthrough
	case q.Bytes != nil:
		return child.Data{Bytes: q.Bytes}, nil
	case bytes.Equal(q.Payload, work):
		time.Sleep(time.Millisecond)
	case bytes.HasPrefix(q.Payload, die):
		os.Exit(1)
	case wantsStream(q.Payload):
		for range streamed {
			if err := q.Send(q.Payload); err != nil {
				return nil, err
			}
		}
	}
	return q.Payload, nil
}

// serveFloor does the least that any pool over a unix socket must do: it reads a line
// and writes one, with the same bytes as ours, and does not parse it.
func serveFloor(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReaderSize(conn, 64<<10)
	var line []byte
	for {
		line = line[:0]
		for {
			part, err := lines.ReadSlice('\n')
			line = append(line, part...)
			if err == nil {
				break
			}
			if err != bufio.ErrBufferFull { //nolint:errorlint // it comes unwrapped
				return
			}
		}
		n := 1
		if bytes.Contains(line[:min(len(line), 100)], []byte(`"stream`)) {
			n = streamed + 1
		}
		for range n {
			if _, err := conn.Write(line); err != nil {
				return
			}
		}
	}
}

// Package go-plugin needs a gRPC service. This one is like protoc's output for
// two methods on google.protobuf.BytesValue.
var pluginService = grpc.ServiceDesc{
	ServiceName: "bench.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.BytesValue)
		return in, decode(in)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		in := new(wrapperspb.BytesValue)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		for range streamed + 1 {
			if err := stream.SendMsg(in); err != nil {
				return err
			}
		}
		return nil
	}}},
}

var handshake = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "BENCH_PLUGIN", MagicCookieValue: "echo"}

type echoPlugin struct{ plugin.NetRPCUnsupportedPlugin }

func (echoPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	s.RegisterService(&pluginService, nil)
	return nil
}

func (echoPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

func servePlugin() {
	plugin.Serve(&plugin.ServeConfig{HandshakeConfig: handshake, Plugins: plugin.PluginSet{"echo": echoPlugin{}}, GRPCServer: newServer})
}

func newServer(opts []grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))...)
}

// serveGRPC serves on a unix socket until standard input ends.
func serveGRPC(path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	s := newServer(nil)
	s.RegisterService(&pluginService, nil)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	fmt.Println("ready")
	if err := s.Serve(l); err != nil {
		panic(err)
	}
}

// serveRoadRunner is a worker like goridge's PHP worker: frames on standard input
// and output.
func serveRoadRunner() {
	relay := pipe.NewPipeRelay(os.Stdin, os.Stdout)
	send := func(payload []byte, control, more bool) {
		out := frame.NewFrame()
		out.WriteVersion(out.Header(), frame.Version1)
		if control {
			out.WriteFlags(out.Header(), frame.CONTROL, frame.CodecJSON)
		} else {
			out.WriteFlags(out.Header(), frame.CodecRaw)
			out.WriteOptions(out.HeaderPtr(), 0)
		}
		if more {
			out.SetStreamFlag(out.Header())
		}
		out.WritePayloadLen(out.Header(), uint32(len(payload)))
		out.WritePayload(payload)
		out.WriteCRC(out.Header())
		if err := relay.Send(out); err != nil {
			os.Exit(1)
		}
	}
	in := frame.NewFrame()
	for {
		in.Reset()
		if err := relay.Receive(in); err != nil {
			return
		}
		if in.ReadFlags()&frame.CONTROL != 0 {
			var command struct {
				Stop bool `json:"stop"`
				Pid  int  `json:"pid"`
			}
			if err := json.Unmarshal(in.Payload(), &command); err != nil || command.Stop {
				return
			}
			send(fmt.Appendf(nil, `{"pid":%d}`, os.Getpid()), true, false)
			continue
		}
		if wantsStream(in.Payload()) {
			for range streamed {
				send(in.Payload(), false, true)
			}
		}
		send(in.Payload(), false, false)
	}
}

// line returns our line on the wire, for the floor.
func line(payload json.RawMessage) []byte {
	var b bytes.Buffer
	_ = wire.NewWriter(&b, 0).Query("q1", payload, nil, wire.About{})
	return b.Bytes()
}
