// Command protogen generates the committed files of the proto contract:
// Go messages, Connect handlers and clients, and an OpenAPI document. "make
// generate" runs it; a test fails when a committed file is stale.
//
// It compiles the contract in this process and passes it to the plugins, which
// are pinned in proto.mod, as protoc would.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// The contract and the places of the generated files, below fleet/operator.
const (
	source  = "lifecycle/operator/v1"
	goRoot  = "github.com/pleme-io/lifecycle-go/fleet/operator"
	openAPI = "openapi.json"
)

// plugin is one generator: a program that speaks protoc's plugin protocol.
type plugin struct{ name, options string }

var plugins = []plugin{
	{"protoc-gen-go", "module=" + goRoot},
	{"protoc-gen-connect-go", "module=" + goRoot + ",simple"},
	{
		"protoc-gen-connect-openapi",
		"format=json,path=" + openAPI + ",only-googleapi-http,with-google-error-detail,base=openapi.base.yaml",
	},
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("protogen", flag.ContinueOnError)
	dir := flags.String("dir", "../fleet/operator", "the folder of the contract; it has proto/ below it")
	bin := flags.String("bin", "../bin", "the folder of the plugins")
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := generate(ctx, *dir, *bin)
	if err != nil {
		return err
	}
	for name, text := range files {
		to := filepath.Join(*dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the files that the plugins in bin make from the contract in dir, by
// path below dir.
func generate(ctx context.Context, dir, bin string) (map[string][]byte, error) {
	sources, err := compile(ctx, filepath.Join(dir, "proto"))
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", source, err)
	}
	request, err := requestFor(sources)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, p := range plugins {
		if err := p.run(ctx, dir, bin, request, files); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	text, err := amend(files[openAPI])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", openAPI, err)
	}
	files[openAPI] = text
	return files, nil
}

// operation is the part of an operation of OpenAPI that amend looks at.
type operation map[string]any

// header returns a parameter in the header of a request.
func header(name, description string) map[string]any {
	return map[string]any{"name": name, "in": "header", "description": description, "schema": map[string]any{"type": "string"}}
}

// amend adds what the plugin does not know of the REST side: the entity tags of reads, and If-Match
// where a request has if_match.
func amend(text []byte) ([]byte, error) {
	var doc struct {
		Components json.RawMessage                 `json:"components"`
		Info       json.RawMessage                 `json:"info"`
		OpenAPI    string                          `json:"openapi"`
		Paths      map[string]map[string]operation `json:"paths"`
		Security   json.RawMessage                 `json:"security"`
		Servers    json.RawMessage                 `json:"servers"`
		Tags       json.RawMessage                 `json:"tags"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	for path, verbs := range doc.Paths {
		for verb, op := range verbs {
			switch {
			case verb == "get" && !strings.HasPrefix(path, "/watch/"):
				op.tagged()
			case bytes.Contains(body(op, doc.Components), []byte(`"ifMatch"`)):
				op.add(header("If-Match", "The etag that the object must still have; the field ifMatch does the same."))
			}
		}
	}
	return json.MarshalIndent(doc, "", "  ")
}

// tagged adds the entity tag of a read.
func (op operation) tagged() {
	op.add(header("If-None-Match", "The ETag of an answer that the caller has: when it is still right, the answer is 304."))
	responses, _ := op["responses"].(map[string]any)
	responses["304"] = map[string]any{"description": "The caller has the answer already."}
	if ok, _ := responses["200"].(map[string]any); ok != nil {
		ok["headers"] = map[string]any{"ETag": map[string]any{
			"description": "Tells this answer from others; the revision of an entity.",
			"schema":      map[string]any{"type": "string"},
		}}
	}
}

// add adds a parameter.
func (op operation) add(parameter map[string]any) {
	list, _ := op["parameters"].([]any)
	op["parameters"] = append(list, parameter)
}

// body returns the schema of an operation's request, also when that is one of the components.
func body(op operation, components json.RawMessage) []byte {
	text, err := json.Marshal(op["requestBody"])
	if err != nil {
		return nil
	}
	var all struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	}
	if json.Unmarshal(components, &all) != nil {
		return text
	}
	for name, schema := range all.Schemas {
		if bytes.Contains(text, []byte(`"#/components/schemas/`+name+`"`)) {
			text = append(text, schema...)
		}
	}
	return text
}

// compile returns the files of the contract. The annotations of google.api come from their
// Go package.
func compile(ctx context.Context, root string) (linker.Files, error) {
	_ = annotations.E_Http // linked in, so that it is in the registry
	compiler := protocompile.Compiler{
		SourceInfoMode: protocompile.SourceInfoStandard,
		Resolver: protocompile.CompositeResolver{
			&protocompile.SourceResolver{ImportPaths: []string{root}},
			protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
				d, err := protoregistry.GlobalFiles.FindFileByPath(path)
				return protocompile.SearchResult{Desc: d}, err
			}),
		},
	}
	sources, err := fs.Glob(os.DirFS(root), source+"/*.proto")
	if err != nil {
		return nil, err
	}
	return compiler.Compile(ctx, sources...)
}

// requestFor returns what protoc would pass to a plugin.
func requestFor(sources linker.Files) (*pluginpb.CodeGeneratorRequest, error) {
	request := &pluginpb.CodeGeneratorRequest{}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor) error
	add = func(d protoreflect.FileDescriptor) error { // imports come before the file
		if seen[d.Path()] {
			return nil
		}
		seen[d.Path()] = true
		for i := range d.Imports().Len() {
			if err := add(d.Imports().Get(i).FileDescriptor); err != nil {
				return err
			}
		}
		// Encode and decode, so that options have the linked types.
		raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(d))
		if err != nil {
			return err
		}
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(raw, file); err != nil {
			return err
		}
		request.ProtoFile = append(request.ProtoFile, file)
		return nil
	}
	for _, file := range sources {
		request.FileToGenerate = append(request.FileToGenerate, file.Path())
		if err := add(file); err != nil {
			return nil, err
		}
	}
	return request, nil
}

// run adds the files that the plugin makes from the request to files.
func (p plugin) run(
	ctx context.Context, dir, bin string, request *pluginpb.CodeGeneratorRequest, files map[string][]byte,
) error {
	request.Parameter = &p.options
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	program, err := filepath.Abs(filepath.Join(bin, p.name))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = dir
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	answer := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	if answer.Error != nil {
		return fmt.Errorf("%s", *answer.Error)
	}
	for _, f := range answer.File {
		files[f.GetName()] = []byte(f.GetContent())
	}
	return nil
}
