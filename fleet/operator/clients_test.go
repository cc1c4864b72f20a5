package operator_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// python is Debian's: its packages are for this one.
const python = "/usr/bin/python3"

// run runs a program in a folder, and returns what it prints.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A client whose types are generated from the OpenAPI document compiles in strict TypeScript, and
// reads and writes.
func TestClientInTypeScript(t *testing.T) {
	clients, err := filepath.Abs("testdata/clients")
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(clients, "node_modules")
	if _, err := os.Stat(modules); err != nil {
		t.Skip(`its packages are not installed: "make fleet/operator/testdata/clients/node_modules" installs them`)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("this machine has no node")
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"node_modules": modules, "client.ts": filepath.Join(clients, "client.ts"), "package.json": filepath.Join(clients, "package.json")} {
		if err := os.Symlink(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "openapi.json"), operator.OpenAPI, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, node, filepath.Join(modules, "openapi-typescript/bin/cli.js"), "openapi.json", "-o", "schema.d.ts")
	run(t, dir, node, filepath.Join(modules, "typescript/bin/tsc"), "--strict", "--preserveSymlinks", "--target", "es2022", "--module", "es2022",
		"--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "client.ts")
	base, _ := serve(t, operator.Config{Workflows: newMemory(3)})
	wantText(t, "the client", run(t, dir, node, "client.js", base), "again: 304\n", "from: planning\n", "stale: 409\n", "listed: m-00001 was: planning\n")
}

// A client that is generated from the proto contract runs in Python.
func TestClientInPython(t *testing.T) {
	for _, program := range []string{"protoc", "grpc_python_plugin"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("this machine has no " + program)
		}
	}
	if err := exec.CommandContext(t.Context(), python, "-c", "import grpc").Run(); err != nil {
		t.Skip("its Python has no grpc: ", err)
	}
	dir := t.TempDir()
	set, seen := new(descriptorpb.FileDescriptorSet), map[string]bool{}
	var files []string
	var add func(protoreflect.FileDescriptor)
	add = func(d protoreflect.FileDescriptor) { // imports come before the file
		if seen[d.Path()] {
			return
		}
		seen[d.Path()] = true
		for i := range d.Imports().Len() {
			add(d.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(d))
		if !strings.HasPrefix(d.Path(), "google/protobuf/") { // Python's package has these
			files = append(files, d.Path())
		}
	}
	add(operatorv1.File_lifecycle_operator_v1_workflow_proto)
	text, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "contract.binpb"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "protoc", append([]string{"--descriptor_set_in=contract.binpb", "--python_out=.", "--grpc_python_out=.", "--plugin=protoc-gen-grpc_python=" + plugin(t)}, files...)...)
	program, err := os.ReadFile("testdata/clients/client.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "client.py"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, operator.Config{Workflows: newMemory(3)})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, "the client", run(t, dir, python, "client.py", u.Host), "from: planning\n", "stale: ABORTED\n", "listed: m-00001 was: planning\n")
}

// plugin returns the path of gRPC's generator for Python.
func plugin(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("grpc_python_plugin")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
