// Package command is the command line of vet, for the programs that have it:
// lifecycle-vet, and lifecyclectl as "lifecyclectl vet".
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/vet"
)

// writers are the values of -o.
var writers = map[string]func(vet.Report, io.Writer) error{
	"text": vet.Report.WriteText, "json": vet.Report.WriteJSON, "sarif": vet.Report.WriteSARIF,
}

// ErrFindings is the error of a command that found something of --fail-on or worse. The
// report is written then, and the exit status is 1. Every other error means that vet could
// not look: exit status 2.
var ErrFindings = errors.New("vet: there are findings")

// New returns the command. It uses the streams that cobra gives it, and may be called
// many times in one process.
func New() *cobra.Command {
	var (
		checker                   vet.Checker
		configFile, output, worst string
		list                      bool
	)
	cmd := &cobra.Command{
		Use:   "vet MANIFEST... [--config FILE]",
		Short: "Report where manifests and a service's configuration contradict each other",
		Long: `Report where manifests and a service's configuration contradict each other: grace
and drain, probes and planes, budgets and replicas. Every finding has the reason
and the number to change.

MANIFEST is a file with any number of YAML documents, JSON, a List, a rendered
chart, or a Dockerfile; "-" is standard input. It does not ask a cluster, and does not
check the schema of an object: kubeconform and kubectl apply --dry-run=server do.

FILE is the service's configuration; vet reads its section lifecycle.
Values in it that contradict each other are findings too.
Without --config it reads the file that the manifest mounts from a ConfigMap or a
Secret. Variables of the service's container, such as SERVICE_LIFECYCLE_DRAIN_INTERVAL,
and then its flags take precedence, as in the service itself. A note says when a value
is in an object that vet does not have. Workloads that nothing shows to be a service of
lifecycle are not compared with a configuration.

Exit status: 0 when there is no finding of --fail-on or worse, 1 when there is,
2 when a file cannot be read or the command line is wrong.`,
		Example: Examples("lifecyclectl vet"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return listRules(cmd.OutOrStdout())
			}
			write, ok := writers[output]
			if !ok {
				return fmt.Errorf("-o is %q, want text, json or sarif", output)
			}
			threshold, err := vet.ParseSeverity(worst)
			if err != nil {
				return fmt.Errorf("--fail-on: %w", err)
			}
			if len(args) == 0 {
				return errors.New("no manifest is given: want files, or - for standard input")
			}
			if configFile != "" {
				if err := loadConfig(configFile, &checker); err != nil {
					return err
				}
			}
			if err := checker.Validate(); err != nil {
				return err
			}
			files, err := readFiles(cmd.Context(), args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			report := checker.Check(files...)
			if err := write(report, cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("write the report: %w", err)
			}
			if report.AtLeast(threshold) > 0 {
				return ErrFindings
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&configFile, "config", "", "the service's configuration `file`: YAML, JSON or TOML")
	f.StringVarP(&output, "output", "o", "text", "`format` of the report: text, json or sarif")
	f.StringVar(&worst, "fail-on", "warning", "the least `severity` that gives exit status 1: info, warning or error")
	f.StringVar(&checker.Container, "container", "", "the `name` of the service's container, when the pods have several")
	f.StringSliceVar(&checker.Only, "only", nil, "check only these `workloads`, as Deployment/web or web")
	f.StringSliceVar(&checker.Ignore, "ignore", nil, "`rules` to ignore")
	f.BoolVar(&checker.HasShell, "has-shell", false, "the image has a shell and the usual programs")
	f.BoolVar(&list, "rules", false, "list the rules")
	var ids []string
	for _, r := range vet.Rules() {
		ids = append(ids, r.ID)
	}
	for name, words := range map[string][]string{
		"output":  {"text", "json", "sarif"},
		"fail-on": {"info", "warning", "error"},
		"ignore":  ids,
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flags are those above
	}
	return cmd
}

// Examples are the help's, for the words with which a user calls the command.
func Examples(name string) string {
	return strings.ReplaceAll(`  NAME deployment.yaml pdb.yaml --config service.yaml
  kustomize build overlays/production | NAME -
  helm template web chart | NAME - -o sarif > vet.sarif`, "NAME", name)
}

// loadConfig reads only the section lifecycle of a service's file:
// the environment and the flags of this process are not the service's. The checker
// reports contradictory values, which the service itself would refuse.
func loadConfig(path string, checker *vet.Checker) error {
	live, err := config.Open[lifecycle.Config](path, config.WithSection("lifecycle"), config.WithoutValidation(),
		config.WithEnviron(nil), config.WithArgs(nil), config.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	checker.Config, checker.ConfigFile, checker.ConfigLines = live.Get(), path, map[string]int{}
	for _, s := range live.Settings() {
		if line, err := strconv.Atoi(strings.TrimPrefix(s.Source, path+":")); err == nil {
			checker.ConfigLines[s.Key] = line
		}
	}
	return nil
}

// readFiles reads the files of the arguments. It truncates a file after the size
// limit of vet, which then reports it.
func readFiles(ctx context.Context, names []string, stdin io.Reader) ([]vet.File, error) {
	var files []vet.File
	for i, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if name == "-" && slices.Contains(names[:i], "-") {
			return nil, errors.New("- is given twice: standard input can be read once")
		}
		data, err := readFile(name, stdin)
		if err != nil {
			return nil, err
		}
		files = append(files, vet.File{Name: name, Data: data})
	}
	return files, nil
}

func readFile(name string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err // the error names the operation and the file
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return nil, fmt.Errorf("%s is a folder: give files, as %s/*.yaml, or render it first", name, strings.TrimSuffix(name, "/"))
		}
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, vet.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

func listRules(w io.Writer) error {
	for _, r := range vet.Rules() {
		if _, err := fmt.Fprintf(w, "%-24s %-8s %s\n", r.ID, r.Severity, r.Title); err != nil {
			return err
		}
	}
	return nil
}
