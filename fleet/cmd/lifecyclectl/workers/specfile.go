package workers

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// readSpecs returns the specs of a file, in order. The file is YAML or JSON; its fields are those
// of the contract's WorkerSpec in JSON, with the units of withUnits and the sources of code of
// withContent. The error has a fault of each document that is wrong.
func readSpecs(ctx context.Context, file string, stdin io.Reader) ([]*operatorv1.WorkerSpec, error) {
	text, err := cli.ReadFile(ctx, file, stdin)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	if start := bytes.TrimSpace(text); len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		// A tab in JSON is only ever white space, and YAML does not take all of them.
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	var specs []*operatorv1.WorkerSpec
	var faults []error
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for number := 1; ; number++ {
		var doc map[string]any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		var mismatch *yaml.TypeError
		if err != nil && !errors.As(err, &mismatch) { // the decoder does not find the next document
			return nil, errors.Join(append(faults, fmt.Errorf("%s: %w", file, err))...)
		}
		if err == nil && doc == nil {
			continue // an empty document
		}
		s := new(operatorv1.WorkerSpec)
		if err == nil {
			err = readSpec(ctx, s, doc, filepath.Dir(file))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: document %d: %w", file, number, err))
		}
		specs = append(specs, s)
	}
	if len(specs) == 0 {
		faults = append(faults, fmt.Errorf("%s has no spec of a worker", file))
	}
	return specs, errors.Join(faults...)
}

// readSpec reads a document. Files of code are relative to dir.
func readSpec(ctx context.Context, s *operatorv1.WorkerSpec, doc map[string]any, dir string) error {
	if err := withUnits(doc); err != nil {
		return err
	}
	if code, is := doc["code"].(map[string]any); is {
		if err := withContent(ctx, code, dir); err != nil {
			return err
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(text, s); err != nil {
		if _, fault, has := strings.Cut(err.Error(), "): "); has { // without the place in JSON that the user has not written
			err = errors.New(fault)
		}
		if _, name, has := strings.Cut(err.Error(), `unknown field "`); has {
			if meant := suggest.Nearest(strings.TrimSuffix(name, `"`), fieldNames(s.ProtoReflect().Descriptor())); meant != "" {
				err = fmt.Errorf("%w: did you mean %s?", err, meant)
			}
		}
		return err
	}
	for _, field := range [][2]string{{"id", s.GetId()}, {"mimeType", s.GetMimeType()}, {"topic", s.GetTopic()}} {
		if field[1] == "" {
			return fmt.Errorf("the spec has no %s", field[0])
		}
	}
	if s.GetCode() == nil {
		return errors.New("the spec has no code: want code: {file: PATH}")
	}
	return nil
}

// fieldNames returns the names of the fields of a message, and of the messages in it.
func fieldNames(d protoreflect.MessageDescriptor) (names []string) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		names = append(names, f.JSONName())
		if f.Message() != nil {
			names = append(names, fieldNames(f.Message())...)
		}
	}
	return names
}

// withUnits replaces values with a unit by those of the contract.
func withUnits(doc map[string]any) error {
	for _, unit := range []struct {
		of, field, want string
		read            func(string) (any, error)
	}{
		{"limits", "time", "a duration with its unit, such as 5s", duration},
		{"limits", "load", "a duration with its unit, such as 5s", duration},
		{"limits", "memory", "a number of bytes, such as 1000 or 64MiB", size},
		{"limits", "output", "a number of bytes, such as 1000 or 64MiB", size},
		{"rate", "per", "a duration with its unit, such as 1m", duration},
		{"rollout", "for", "a duration with its unit, such as 10m", duration},
		{"rollout", "canary", "a percentage, such as 10%", percentage},
		{"rollout", "margin", "a percentage, such as 5%", percentage},
	} {
		fields, _ := doc[unit.of].(map[string]any)
		value, is := fields[unit.field]
		if !is {
			continue
		}
		v, err := unit.read(fmt.Sprint(value))
		if err != nil {
			return fmt.Errorf("%s.%s is %v, want %s", unit.of, unit.field, value, unit.want)
		}
		fields[unit.field] = v
	}
	return nil
}

func duration(text string) (any, error) {
	d, err := time.ParseDuration(text)
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s", err
}

func percentage(text string) (any, error) { return strconv.Atoi(strings.TrimSuffix(text, "%")) }

func size(text string) (any, error) {
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if digits, has := strings.CutSuffix(text, unit); has {
			text, shift = strings.TrimSpace(digits), 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(text, 10, 64-shift)
	return v << shift, err
}

// withContent replaces the file or the text of a code by its content, as the contract has it.
func withContent(ctx context.Context, code map[string]any, dir string) error {
	sources := 0
	for _, name := range []string{"file", "text", "content", "url"} {
		if _, is := code[name]; is {
			sources++
		}
	}
	if sources != 1 {
		return fmt.Errorf("code has %d sources, want one of file, text, content and url", sources)
	}
	if text, is := code["text"].(string); is {
		delete(code, "text")
		code["content"] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	if file, is := code["file"].(string); is {
		delete(code, "file")
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		text, err := cli.ReadFile(ctx, file, nil)
		if err != nil {
			return fmt.Errorf("code.file: %w", err)
		}
		code["content"] = base64.StdEncoding.EncodeToString(text)
	}
	return nil
}
