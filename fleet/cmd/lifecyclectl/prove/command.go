package prove

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// Commands returns the command prove, and the one that its Job runs.
func Commands() []*cobra.Command { return []*cobra.Command{prove(), runLoad()} }

func prove() *cobra.Command {
	var (
		o      Options
		agree  cli.Consent
		format string
	)
	cmd := &cobra.Command{
		Use:   "prove KIND/NAME [--image IMAGE]",
		Short: "Roll, scale and delete a workload's pods under load, and account for every request",
		Long: `Roll, scale and delete the pods of a Deployment, a StatefulSet or a DaemonSet under
load, and account for every request. It works on any cluster, through kubectl and its
current context. The load is a Job in the same namespace, so no request leaves the
cluster.

The steps: a rolling restart, a scale down and up, the deletion of a pod; a DaemonSet
is not scaled. When the kubelet had to kill pods, the one that is deleted gets a
minute more, which shows whether its program ends at all. The
clients never send a request twice: HTTP/1.1 on connections that are kept and idle
for up to 4 s, HTTP/1.1 on new connections, HTTP/2 POST with a body that cannot be
read again, and with --stream a stream of events. A request is lost when it gets no
answer, or a status of 500 or more.

The report says what was lost, when in the pod's life, and which number or line of
the manifest to change. How containers ended comes first: their exit statuses, their
restarts, the last lines of their logs. prove starts only when all replicas are available and the
service answers without a loss. In the end, also after Ctrl-C, it deletes the Job
and puts the replicas back.

It asks first, unless the workload has the label ` + Label + `=allowed.
IMAGE is an image whose entry point is this version of lifecyclectl; a released
version has one.

Exit status: 0 when no request was lost, 1 when one was or the proof failed.`,
		Example: `  lifecyclectl prove deployment/web
  lifecyclectl prove deployment/web --image $IMAGE --get /healthz --post /orders --stream /events
  lifecyclectl prove deployment/web --image $IMAGE -n shop --yes -o json`,
		Args: cli.Words("KIND/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("-o is %q, want text or json", format)
			}
			o.Target = args[0]
			if o.Image == "" {
				o.Image = publishedImage(cli.Version())
			}
			shown := cli.Begin(cmd.ErrOrStderr(), "reading the cluster")
			o.Now = func(text string) { shown.Say("%s", text) }
			o.Step = func(text string) {
				shown.End()
				fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", output.Printable(text))
			}
			o.Ask = func(what string) error {
				shown.End()
				return agree.Ask(cmd, what)
			}
			report, err := Run(cmd.Context(), o)
			shown.End()
			if err != nil {
				return err
			}
			write := report.WriteText
			if format == "json" {
				write = report.WriteJSON
			}
			if err := write(cmd.OutOrStdout()); err != nil {
				return fmt.Errorf("write the report: %w", err)
			}
			if report.Lost > 0 {
				return cli.Exit(cli.ExitFindings)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Namespace, "namespace", "n", "", "the `namespace`; default: that of kubectl's context")
	f.StringVar(&o.Context, "context", "", "kubectl's `context`")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubectl's configuration `file`")
	f.StringVar(&o.Service, "service", "", "the `name` of the Service, when several select the pods")
	f.StringVar(&o.Port, "port", "", "`name` or number of the Service's port, when it has several")
	f.StringVar(&o.Image, "image", "", "the `image` of lifecyclectl for the load; default: the published one of a released version")
	f.StringVar(&o.Get, "get", "/", "`path` of the HTTP/1.1 requests")
	f.StringVar(&o.Post, "post", "/", "`path` of the HTTP/2 requests; empty sends none")
	f.StringVar(&o.Stream, "stream", "", "`path` of a stream of events; empty opens none")
	f.DurationVar(&o.Timeout, "timeout", 20*time.Minute, "the maximum `time` of the whole proof")
	f.StringVarP(&format, "output", "o", "text", "`format` of the report: text or json")
	agree.Register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// publishedImage returns the image that was published with this version; "" for a build
// that was not released.
func publishedImage(version string) string {
	number, released := strings.CutPrefix(version, "v")
	if !released || strings.ContainsAny(number, "-+") {
		return ""
	}
	return "ghcr.io/pleme-io/lifecyclectl:" + number
}

// runLoad returns what the Job of a proof runs. People do not call it.
func runLoad() *cobra.Command {
	return &cobra.Command{
		Use:    Command + " PLAN",
		Short:  "Send the requests of a proof; prove runs it as a Job",
		Args:   cli.Words("PLAN"),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return load.Command(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
}
