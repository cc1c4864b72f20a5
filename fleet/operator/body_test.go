package operator_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// roled accepts every request, as a caller with this role.
type roled operator.Role

func (r roled) Authenticate(*http.Request) (operator.Principal, error) {
	return operator.Principal{Name: "ada", Role: operator.Role(r), Method: "test"}, nil
}

// zipped returns the gzip of head, n spaces and tail.
func zipped(t *testing.T, head string, n int, tail string) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(z, head)
	block := bytes.Repeat([]byte(" "), 1<<20)
	for ; n > 0; n -= len(block) {
		_, _ = z.Write(block[:min(n, len(block))])
	}
	_, _ = io.WriteString(z, tail)
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

// A small body that decompresses to a large one is refused, in every protocol, after
// the server has decompressed no more than the limit.
func TestDecompressionHasABudget(t *testing.T) {
	bomb := zipped(t, `{"phase":"flying"`, 400<<20, `}`)
	for _, role := range []operator.Role{operator.RoleViewer, operator.RoleOperator} {
		url, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: roled(role)})
		for _, test := range []struct {
			what, path string
			body       []byte
			header     []string
			code       int
		}{
			{"REST", restMove, bomb, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 413},
			{"Connect", rpcMove, bomb, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 400},
			{"gRPC-Web", rpcMove, envelope(1, bomb), []string{"Content-Type", "application/grpc-web+proto", "Grpc-Encoding", "gzip", "Grpc-Accept-Encoding", "identity"}, 200},
			{"a stream of Connect", "/lifecycle.operator.v1.WorkflowService/Watch", envelope(1, bomb), []string{"Content-Type", "application/connect+json", "Connect-Content-Encoding", "gzip", "Connect-Accept-Encoding", "identity"}, 200},
			{"a form", "/ui/act/transition", bomb, []string{"Content-Type", "application/x-www-form-urlencoded", "Content-Encoding", "gzip"}, 413},
			{"a large body that is not compressed", restMove, bytes.Repeat([]byte(" "), 3<<20), []string{"Content-Type", "application/json"}, 413},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			code, text := post(t, url+test.path, test.body, test.header...)
			runtime.ReadMemStats(&after)
			if code != test.code || !strings.Contains(text, "larger") {
				t.Errorf("%s as %s: %d %.300s", test.what, role, code, text)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%s as %s: allocated %d MiB", test.what, role, used>>20)
			}
		}
	}
}

// Compressed requests work in every protocol. What cannot be decompressed is the
// caller's error.
func TestCompressedRequests(t *testing.T) {
	url, _ := serve(t, operator.Config{Workflows: newMemory(1)})
	good, bad := zipped(t, move, 0, ""), zipped(t, move, 0, "")
	bad[len(bad)/2] ^= 0x55
	short := good[:len(good)/2]
	rest := zipped(t, `{"phase":"flying","dryRun":true}`, 0, "")
	for _, test := range []struct {
		what, path string
		body       []byte
		header     []string
		code       int
		says       string
	}{
		{"REST", restMove, rest, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 200, "planning"},
		{"REST in capitals", restMove, rest, []string{"Content-Type", "application/json", "Content-Encoding", "GZIP"}, 200, "planning"},
		{"Connect", rpcMove, good, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 200, "planning"},
		{"broken", rpcMove, bad, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 400, "not gzip"},
		{"cut", rpcMove, short, []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 400, "not gzip"},
		{"not gzip", restMove, []byte(move), []string{"Content-Type", "application/json", "Content-Encoding", "gzip"}, 400, "not gzip"},
		{"unknown", restMove, rest, []string{"Content-Type", "application/json", "Content-Encoding", "br"}, 415, "not supported"},
		{"twice", restMove, rest, []string{"Content-Type", "application/json", "Content-Encoding", "gzip, gzip"}, 415, "not supported"},
		{"an envelope that is cut", rpcMove, envelope(0, []byte(move))[:20], []string{"Content-Type", "application/grpc-web+json"}, 200, "whole messages"},
		{"an envelope", "/lifecycle.operator.v1.WorkflowService/Transition", envelope(1, good), []string{"Content-Type", "application/grpc-web+json", "Grpc-Encoding", "gzip", "Grpc-Accept-Encoding", "identity"}, 200, ""},
	} {
		code, text := post(t, url+test.path, test.body, test.header...)
		if code != test.code || !strings.Contains(text, test.says) {
			t.Errorf("%s: %d %.300q, want %d and %q", test.what, code, text, test.code, test.says)
		}
	}
}
