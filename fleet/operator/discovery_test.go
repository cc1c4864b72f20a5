package operator_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// dial connects with the gRPC library.
func dial(t *testing.T, base string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(base, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A client without the contract lists the services, reads their descriptions,
// and calls one, as grpcurl does.
func TestReflectionIsEnoughToCallAMethod(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(3)})
	conn := dial(t, base)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *grpc_reflection_v1.ServerReflectionRequest) *grpc_reflection_v1.ServerReflectionResponse {
		t.Helper()
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
		answer, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var names []string
	for _, service := range ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, want := range []string{"WorkflowService", "WorkerService", "ProcessService", "AccessService"} {
		if !slices.Contains(names, "lifecycle.operator.v1."+want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	// Every service has a description, with all its dependencies.
	files := &descriptorpb.FileDescriptorSet{}
	have := map[string]bool{}
	var need func(*grpc_reflection_v1.ServerReflectionRequest)
	need = func(req *grpc_reflection_v1.ServerReflectionRequest) {
		answer := ask(req)
		if e := answer.GetErrorResponse(); e != nil {
			t.Fatalf("%v: %v", req, e)
		}
		for _, text := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
			f := &descriptorpb.FileDescriptorProto{}
			if err := proto.Unmarshal(text, f); err != nil {
				t.Fatal(err)
			}
			if have[f.GetName()] {
				continue
			}
			have[f.GetName()] = true
			files.File = append(files.File, f)
			for _, other := range f.GetDependency() {
				if !have[other] {
					need(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileByFilename{FileByFilename: other}})
				}
			}
		}
	}
	for _, name := range names {
		need(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}})
	}
	if e := ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "no.Such"}}).GetErrorResponse(); e.GetErrorCode() != int32(codes.NotFound) {
		t.Errorf("an unknown name: %v", e)
	}
	registry, err := protodesc.NewFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	input, output := described(t, registry, "lifecycle.operator.v1.WorkflowService.ListEntities")
	if err := protojson.Unmarshal([]byte(`{"type":"drone-survey","match":["org=acme"]}`), input); err != nil {
		t.Fatal(err)
	}
	if err := conn.Invoke(ctx, "/lifecycle.operator.v1.WorkflowService/ListEntities", input, output); err != nil {
		t.Fatal(err)
	}
	wantText(t, "the answer", strings.ReplaceAll(protojson.Format(output), " ", ""), `"id":"m-00000"`, `"id":"m-00002"`)

	input, output = described(t, registry, "lifecycle.operator.v1.WorkflowService.Watch")
	if err := protojson.Unmarshal([]byte(`{"type":"drone-survey","id":"m-00001"}`), input); err != nil {
		t.Fatal(err)
	}
	watch, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/lifecycle.operator.v1.WorkflowService/Watch")
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.SendMsg(input); err != nil {
		t.Fatal(err)
	}
	if err := watch.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"KIND_PUT", "KIND_SYNCED"} {
		if err := watch.RecvMsg(output); err != nil || !strings.Contains(protojson.Format(output), kind) {
			t.Errorf("the watch sends %v, %v, want %s", output, err, kind)
		}
	}
	// Older clients use the previous version.
	old, err := grpc_reflection_v1alpha.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Send(&grpc_reflection_v1alpha.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1alpha.ServerReflectionRequest_ListServices{}}); err != nil { //nolint:staticcheck // older clients use it
		t.Fatal(err)
	}
	if answer, err := old.Recv(); err != nil || len(answer.GetListServicesResponse().GetService()) != len(names) { //nolint:staticcheck // older clients use it
		t.Errorf("with v1alpha: %v, %v", answer, err)
	}
}

// described makes a method's messages from its description.
func described(t *testing.T, registry *protoregistry.Files, method protoreflect.FullName) (input, output *dynamicpb.Message) {
	t.Helper()
	d, err := registry.FindDescriptorByName(method)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		t.Fatalf("%s is a %T", method, d)
	}
	return dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
}

// The process and each service have a health. Reflection and health need
// credentials, like all other methods.
func TestHealthOfEachService(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	client := grpc_health_v1.NewHealthClient(dial(t, base))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without credentials: %v", err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+vicToken)
	for service, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
		"":                                      grpc_health_v1.HealthCheckResponse_SERVING,
		"lifecycle.operator.v1.WorkflowService": grpc_health_v1.HealthCheckResponse_SERVING,
		"lifecycle.operator.v1.AccessService":   grpc_health_v1.HealthCheckResponse_SERVING,
		"lifecycle.operator.v1.WorkerService":   grpc_health_v1.HealthCheckResponse_NOT_SERVING, // the server has no workers
		"lifecycle.operator.v1.ProcessService":  grpc_health_v1.HealthCheckResponse_NOT_SERVING,
	} {
		if got, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}); err != nil || got.GetStatus() != want {
			t.Errorf("%q is %v, %v, want %v", service, got.GetStatus(), err, want)
		}
	}
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "no.Such"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	// The protocol allows a server without Watch; clients then assume that it is healthy.
	watch, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("watch: %v, want Unimplemented", err)
	}
}

// The health of a draining process is not serving.
func TestHealthWhileTheProcessDrains(t *testing.T) {
	op, err := operator.New(operator.Config{Workflows: newMemory(1), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close(t.Context())
	health := func(ctx context.Context) string {
		r := httptest.NewRequestWithContext(context.WithValue(ctx, http.LocalAddrContextKey, local), http.MethodPost, "/grpc.health.v1.Health/Check", strings.NewReader("{}"))
		r.RemoteAddr, r.Host = local.String(), "localhost"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		op.Handler().ServeHTTP(w, r)
		return w.Body.String()
	}
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainInterval: time.Minute, DrainMin: lifecycle.Off}, lifecycle.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	app.Go("asks", func(ctx context.Context) error {
		wantText(t, "before", health(ctx), `_STATUS_SERVING"`)
		app.Stop(nil)
		return nil
	}).OnDrain("asks", lifecycle.DrainFunc(func(ctx context.Context) error {
		wantText(t, "while it drains", health(ctx), `_STATUS_NOT_SERVING"`)
		return nil
	}))
	if err := app.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// The API works with curl alone.
func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("this machine has no curl")
	}
	_, auth := tokenFile(t)
	m := newMemory(2)
	base, _ := serve(t, operator.Config{Workflows: m, Auth: auth})
	curl := func(args ...string) string {
		t.Helper()
		out, _ := exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "-i", "--max-time", "60", "-H", "Authorization: Bearer " + adaToken}, args...)...).CombinedOutput()
		return strings.ReplaceAll(string(out), "\r\n", "\n")
	}
	got := curl(base + "/workflows/drone-survey/m-00000")
	wantText(t, "get", got, "HTTP/1.1 200 OK", "Etag: \"1\"", `"phase":"planning"`)
	got = curl("-X", "POST", base+"/workflows/drone-survey/m-00000/transition", "-H", `If-Match: "1"`, "--json", `{"phase":"flying"}`)
	wantText(t, "transition", got, "200 OK", `"from":"planning"`)
	got = curl("-X", "POST", base+"/workflows/drone-survey/m-00000/transition", "-H", `If-Match: "1"`, "--json", `{"phase":"landing"}`)
	wantText(t, "stale", got, "409 Conflict", operator.ReasonStale)
	got = curl("--json", `{"type":"drone-survey"}`, base+"/lifecycle.operator.v1.WorkflowService/ListEntities")
	wantText(t, "Connect", got, "200 OK", `"m-00001"`)
	got = curl("--http2-prior-knowledge", base+"/definitions")
	wantText(t, "HTTP/2", got, "HTTP/2 200", `"drone-survey"`)
	got = curl("-I", base+"/workflows/drone-survey/m-00000")
	if !strings.Contains(got, "HTTP/1.1 ") || strings.Contains(got, "500") {
		t.Errorf("HEAD: %s", got)
	}
	got = curl(base+"/workflows/drone-survey", "-X", "OPTIONS")
	wantText(t, "OPTIONS", got, "405")

	events := exec.CommandContext(t.Context(), "curl", "-sSN", "-H", "Authorization: Bearer "+vicToken, base+"/watch/workflows/drone-survey?id=m-00001")
	out, err := events.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { events.Process.Kill(); events.Wait() }()
	read := ""
	for b := make([]byte, 4096); !strings.Contains(read, `"phase":"flying"`); {
		n, err := out.Read(b)
		if read += string(b[:n]); err != nil {
			t.Fatalf("the events end with %v after %s", err, read)
		}
		if strings.Contains(read, "event: synced") && !strings.Contains(read, `"phase":"flying"`) {
			fly := &operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00001", Phase: "flying"}
			if _, _, err := m.Transition(t.Context(), fly, "", 0); err != nil && !strings.Contains(err.Error(), "followed by") {
				t.Fatal(err)
			}
		}
	}
	wantText(t, "the events", read, "event: put\ndata: {", "event: synced\n")
}
