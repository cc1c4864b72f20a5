package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func patchCommand() *cobra.Command {
	var (
		r    remote
		o    output
		req  operatorv1.PatchRequest
		file string
	)
	cmd := &cobra.Command{
		Use:   "patch TYPE ID [FIELD=VALUE...]",
		Short: "Change fields that operators may write, all or none",
		Long: `Change fields that operators may write, all or none. VALUE is JSON, or text
when it is not valid JSON: priority=3, armed=true, comment=soon, tag='"007"'.
lifecyclectl definitions TYPE lists the fields.`,
		Example: `  lifecyclectl patch drone-survey m-17 priority=3 comment="before the rain"
  jq '{priority}' other.json | lifecyclectl patch drone-survey m-17 --file -`,
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			if err := words("TYPE", "ID")(cmd, args[:min(2, len(args))]); err != nil {
				return err
			}
			req.Type, req.Id = args[0], args[1]
			var err error
			if req.Fields, err = patchFields(args[2:], file, cmd.InOrStdin()); err != nil {
				return err
			}
			answer, err := a.Workflows.Patch(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) {
				e := answer.GetEntity()
				t.row(fmt.Sprintf("%s/%s is at etag %s%s", e.GetType(), e.GetId(), e.GetEtag(), dry(req.GetDryRun())))
				for _, name := range sortedFields(req.GetFields()) {
					t.row("  " + name + " = " + valueText(e.GetFields().GetFields()[name]))
				}
			})
		}),
		ValidArgsFunction: completeEntities(&r),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "a JSON object with the fields, from this `file`; - is standard input")
	writeFlags(cmd, &req.IfMatch, &req.DryRun)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

func writeFlags(cmd *cobra.Command, ifMatch *string, dryRun *bool) {
	cmd.Flags().StringVar(ifMatch, "if-match", "", "refuse when the entity no longer has this `etag`")
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "check everything and change nothing")
}

func dry(run bool) string {
	if run {
		return " (dry run: nothing has changed)"
	}
	return ""
}

// maxFile is the maximum size of a file to send, in bytes: more than any
// server accepts.
const maxFile = 64 << 20

// patchFields reads the fields of a patch from arguments and from a file.
func patchFields(args []string, file string, stdin io.Reader) (*structpb.Struct, error) {
	fields := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	if file != "" {
		text, err := readAll(file, stdin)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		if err := protojson.Unmarshal(text, fields); err != nil {
			return nil, fmt.Errorf("--file: %s is not a JSON object: %w", file, err)
		}
	}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not a change: want FIELD=VALUE", arg)
		}
		if _, twice := fields.GetFields()[name]; twice {
			return nil, fmt.Errorf("the field %s is given twice", name)
		}
		v, err := fieldValue(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fields.Fields[name] = v
	}
	if len(fields.GetFields()) == 0 {
		return nil, errors.New("no field is given: want FIELD=VALUE, or --file")
	}
	return fields, nil
}

// fieldValue parses text as JSON, or takes it as text. Integers that a double cannot hold
// stay text, as in the contract.
func fieldValue(text string) (*structpb.Value, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var any any
	if err := dec.Decode(&any); err != nil || dec.More() {
		return structpb.NewStringValue(text), nil //nolint:nilerr // not JSON: plain text
	}
	if n, ok := any.(json.Number); ok {
		if i, err := n.Int64(); err != nil && !strings.ContainsAny(n.String(), ".eE") || err == nil && (i > 1<<53-1 || i < -(1<<53-1)) {
			return structpb.NewStringValue(text), nil
		}
	}
	v := &structpb.Value{}
	if err := protojson.Unmarshal([]byte(text), v); err != nil {
		return nil, fmt.Errorf("%q cannot be sent: %w", text, err)
	}
	return v, nil
}

// readAll reads a file, or standard input for "-".
func readAll(file string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file, err)
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", file, maxFile>>20)
	}
	return text, nil
}
