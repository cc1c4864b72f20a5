package operator_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// roled accepts every request, as a caller with this role.
type roled operator.Role

func (r roled) Authenticate(*http.Request) (operator.Principal, error) {
	return operator.Principal{Name: "ada", Role: operator.Role(r), Method: "test"}, nil
}

// zipped returns the gzip of a text.
func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = io.WriteString(z, text)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func envelope(flags byte, message []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message)))
	return append(head, message...)
}

func post(t *testing.T, url string, body []byte, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text) + resp.Header.Get("Grpc-Message") + resp.Trailer.Get("Grpc-Message")
}

const (
	restMove = "/workflows/drone-survey/m-00000/transition"
	rpcMove  = "/lifecycle.operator.v1.WorkflowService/Transition"
	move     = `{"type":"drone-survey","id":"m-00000","phase":"flying","dryRun":true}`
)

// countingListener counts the bytes that a server reads from its connections.
type countingListener struct {
	net.Listener
	read atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l}, err
}

type countingConn struct {
	net.Conn
	l *countingListener
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.l.read.Add(int64(n))
	return n, err
}

// A body that is larger than the limit of the caller's role is refused, in every protocol,
// after the server has read no more than that, and the 256 KiB that net/http discards.
func TestLargeRequestsAreRefused(t *testing.T) {
	large := []byte(`{"phase":"flying"` + strings.Repeat(" ", 20<<20) + `}`)
	for role, limit := range map[operator.Role]int64{operator.RoleViewer: 64 << 10, operator.RoleOperator: 9 << 20} {
		s, err := operator.New(operator.Config{Workflows: newMemory(1), Auth: roled(role), Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln, srv, url := &countingListener{Listener: inner}, s.HTTPServer(), "http://"+inner.Addr().String()
		go srv.Serve(ln)
		t.Cleanup(func() {
			s.Close(context.Background())
			srv.Close()
			http.DefaultClient.CloseIdleConnections()
		})
		for _, test := range []struct {
			what, path string
			body       []byte
			header     []string
			code       int
		}{
			{"REST", restMove, large, []string{"Content-Type", "application/json"}, 413},
			{"Connect", rpcMove, large, []string{"Content-Type", "application/json"}, 400},
			{"gRPC-Web", rpcMove, envelope(0, large), []string{"Content-Type", "application/grpc-web+proto"}, 200},
			{"a stream of Connect", "/lifecycle.operator.v1.WorkflowService/Watch", envelope(0, large), []string{"Content-Type", "application/connect+json"}, 200},
			{"a form", "/ui/act/transition", large, []string{"Content-Type", "application/x-www-form-urlencoded"}, 413},
		} {
			ln.read.Store(0)
			code, text := post(t, url+test.path, test.body, test.header...)
			if code != test.code || !strings.Contains(text, "larger") {
				t.Errorf("%s as %s: %d %.300s", test.what, role, code, text)
			}
			if read := ln.read.Load(); read > limit+1<<20 {
				t.Errorf("%s as %s: the server read %d bytes, its limit is %d", test.what, role, read, limit)
			}
		}
	}
}

// takesCode are workers that take code of any size.
type takesCode struct{ operator.Workers }

func (takesCode) Apply(_ context.Context, spec *operatorv1.WorkerSpec, _ bool, _ string) (*operatorv1.ApplyWorkerResponse, error) {
	return &operatorv1.ApplyWorkerResponse{Worker: &operatorv1.Worker{Backlog: int64(len(spec.GetCode().GetContent()))}}, nil
}

func (takesCode) Test(_ context.Context, req *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error) {
	return &operatorv1.TestWorkerResponse{Logs: []string{fmt.Sprint(len(req.GetCode().GetContent()))}}, nil
}

// Each request that carries code may have as much of it as the others, in every protocol.
func TestLargeCodeIsAppliedAndTried(t *testing.T) {
	const size = 3 << 20
	url, _ := serve(t, operator.Config{Workers: takesCode{}, Auth: roled(operator.RoleOperator)})
	code := &operatorv1.Code{Source: &operatorv1.Code_Content{Content: make([]byte, size)}}
	spec := &operatorv1.WorkerSpec{Id: "w", MimeType: "application/wasm", Topic: "in", Code: code}
	for what, opts := range map[string][]connect.ClientOption{
		"Connect":  nil,
		"JSON":     {connect.WithProtoJSON()},
		"gRPC-Web": {connect.WithGRPCWeb()},
		"gRPC":     {connect.WithGRPC()},
	} {
		c := operatorv1connect.NewWorkerServiceClient(h2c(t), url, opts...)
		applied, err := c.ApplyWorker(t.Context(), &operatorv1.ApplyWorkerRequest{Spec: spec, DryRun: true})
		if err != nil || applied.GetWorker().GetBacklog() != size {
			t.Errorf("apply with %s: %v, %v", what, applied, err)
		}
		tried, err := c.TestWorker(t.Context(), &operatorv1.TestWorkerRequest{Id: "w", Code: code})
		if err != nil || tried.GetLogs()[0] != fmt.Sprint(size) {
			t.Errorf("try with %s: %v, %v", what, tried, err)
		}
	}
	for path, m := range map[string]proto.Message{
		"/workers:apply":  &operatorv1.ApplyWorkerRequest{Spec: spec},
		"/workers/w/test": &operatorv1.TestWorkerRequest{Code: code},
	} {
		body, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := post(t, url+path, body, "Content-Type", "application/json"); status != 200 || !strings.Contains(text, fmt.Sprint(size)) {
			t.Errorf("%s: %d %.300s", path, status, text)
		}
	}
}

// The server decompresses nothing: it refuses a compressed request in every protocol, also one
// in the address of a request.
func TestCompressedRequestsAreRefused(t *testing.T) {
	url, _ := serve(t, operator.Config{Workflows: newMemory(1)})
	message := base64.RawURLEncoding.EncodeToString(zipped(t, `{"type":"drone-survey"}`))
	for _, test := range []struct {
		what, path string
		body       []byte
		header     []string
		code       int
	}{
		{"REST", restMove, zipped(t, move), []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 415},
		{"REST in capitals", restMove, zipped(t, move), []string{"Content-Type", "application/json", "Content-Encoding", " GZIP "}, 415},
		{"REST with another one", restMove, zipped(t, move), []string{"Content-Type", "application/json", "Content-Encoding", "br"}, 415},
		{"Connect", rpcMove, zipped(t, move), []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 501},
		{"gRPC-Web", rpcMove, envelope(1, zipped(t, move)), []string{"Content-Type", "application/grpc-web+json", "Grpc-Encoding", "gzip"}, 200},
		{"a stream of Connect", "/lifecycle.operator.v1.WorkflowService/Watch", envelope(1, zipped(t, move)), []string{"Content-Type", "application/connect+json", "Connect-Content-Encoding", "gzip"}, 200},
		{"a form", "/ui/act/transition", zipped(t, "phase=flying"), []string{"Content-Type", "application/x-www-form-urlencoded", "Content-Encoding", "gzip"}, 415},
	} {
		code, text := post(t, url+test.path, test.body, test.header...)
		if code != test.code || !strings.Contains(text, "without compression") {
			t.Errorf("%s: %d %.300q, want %d", test.what, code, text, test.code)
		}
	}
	get := url + "/lifecycle.operator.v1.WorkflowService/GetDefinition?connect=v1&encoding=json&base64=1&message=" + message
	if code, _, text := request(t, "GET", get+"&compression=gzip", ""); code != 501 || !strings.Contains(text, "without compression") {
		t.Errorf("Connect with GET: %d %s", code, text)
	}
	plain := base64.RawURLEncoding.EncodeToString([]byte(`{"type":"drone-survey"}`))
	if code, _, text := request(t, "GET", strings.Replace(get, message, plain, 1), ""); code != 200 {
		t.Errorf("Connect with GET, without compression: %d %s", code, text)
	}
	if code, text := post(t, url+rpcMove, envelope(0, []byte(move)), "Content-Type", "application/grpc-web+json", "Grpc-Encoding", "identity"); code != 200 || strings.Contains(text, "without") {
		t.Errorf("identity is no compression: %d %s", code, text)
	}
	if code, text := post(t, url+rpcMove, envelope(1, zipped(t, move)), "Content-Type", "application/grpc-web+json"); code != 200 || strings.Contains(text, "planning") {
		t.Errorf("a compressed message that does not say so: %d %s", code, text)
	}
}

// A limit that is wrong is refused with what it may be.
func TestWrongLimitOfBodies(t *testing.T) {
	for _, most := range []int64{-5, 1<<30 + 1} {
		err := operator.Config{MaxBody: most}.Validate()
		if err == nil || !strings.HasSuffix(err.Error(), "want more than 0, and at most 1 GiB") {
			t.Errorf("MaxBody %d: %v", most, err)
		}
	}
}
