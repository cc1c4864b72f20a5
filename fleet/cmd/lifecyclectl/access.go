package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func noSubject([]string) subject { return subject{} }

func whoamiCommand() *cobra.Command {
	var (
		r remote
		o output
	)
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show your name and role on the server",
		Long: `Show your name and role on the server: a viewer reads, an inspector
also reads the logs, stacks and configuration of processes, an operator also acts.`,
		Args: words(),
		RunE: asks(&r, &o, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
			me, err := a.Access.WhoAmI(cmd.Context(), &operatorv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), me, func(t *table) {
				t.row(cell{"name", faint}, me.GetName())
				t.row(cell{"role", faint}, me.GetRole())
				for _, g := range me.GetGrants() {
					t.row(cell{"role", faint}, g.GetRole()+whereOf(g))
				}
				t.row(cell{"by", faint}, me.GetMethod())
				t.row(cell{"server", faint}, a.url)
			})
		}),
	}
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// whereOf says where a role in a part of the fleet is valid.
func whereOf(g *operatorv1.Grant) string {
	text := ""
	for _, list := range []struct {
		kind  string
		names []string
	}{{"services", g.GetServices()}, {"workflows", g.GetWorkflows()}, {"workers", g.GetWorkers()}, {"tenants", g.GetTenants()}} {
		if len(list.names) > 0 {
			text += " " + list.kind + "=" + strings.Join(list.names, ",")
		}
	}
	return text
}

func auditCommand() *cobra.Command {
	var (
		r     remote
		o     output
		req   operatorv1.ListAuditRequest
		limit int
		since time.Duration

		follow bool
	)
	cells := func(e *operatorv1.AuditEntry) []any {
		outcome := cell{e.GetOutcome(), bad}
		if e.GetOutcome() == "ok" {
			outcome.colour = good
		}
		detail := e.GetDetail()
		if e.GetDryRun() {
			detail += " (dry run)"
		}
		return []any{moment(e.GetAt()), e.GetWho(), e.GetAction(), e.GetTarget(), detail, outcome}
	}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List who did what, or tried to, newest first",
		Long: `List who did what, or tried to, newest first. A server without an audit log
remembers the latest 1000.`,
		Example: `  lifecyclectl audit --who ada --since 24h
  lifecyclectl audit --limit 0 -o json > audit.json`,
		Args: words(),
		RunE: asks(&r, &o, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
			if since > 0 {
				req.Since = timestamppb.New(time.Now().Add(-since))
			}
			look := func(ctx context.Context) (all []*operatorv1.AuditEntry, err error) {
				req.PageToken = ""
				for more := true; more; more = req.GetPageToken() != "" && (limit == 0 || len(all) < limit) {
					req.PageSize = pageSize(limit, len(all))
					list, err := a.Access.ListAudit(ctx, &req)
					if err != nil {
						return nil, err
					}
					all = append(all, list.GetEntries()...)
					req.PageToken = list.GetNextPageToken()
				}
				return all, nil
			}
			head := []string{"AT", "WHO", "ACTION", "TARGET", "DETAIL", "OUTCOME"}
			if follow { // oldest first, as everything that goes on
				return polled[*operatorv1.AuditEntry]{
					head: head, widths: []int{20, 12, 24, 24, 20},
					look: func(ctx context.Context) ([]*operatorv1.AuditEntry, error) {
						list, err := look(ctx)
						slices.Reverse(list)
						return list, err
					},
					key: func(e *operatorv1.AuditEntry) string {
						return fmt.Sprint(e.GetAt().AsTime().UnixNano(), e.GetWho(), e.GetAction(), e.GetTarget())
					},
					cells: cells, only: true,
				}.watch(a, cmd, &o)
			}
			list, err := look(cmd.Context())
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), &operatorv1.ListAuditResponse{Entries: list}, func(t *table) {
				t.head(head...)
				for _, e := range list {
					t.row(cells(e)...)
				}
			})
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this `many`; 0 is all")
	cmd.Flags().StringVar(&req.Who, "who", "", "only those whose caller contains this `text`")
	cmd.Flags().StringVar(&req.Action, "action", "", "only those whose action contains this `text`")
	cmd.Flags().StringVar(&req.Target, "target", "", "only those whose target contains this `text`")
	cmd.Flags().BoolVar(&req.Refused, "refused", false, "only those that did not succeed")
	cmd.Flags().DurationVar(&since, "since", 0, "only those of the last `time`, such as 24h")
	watchFlag(cmd, &follow)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// pageSize returns the size of the next page of a list that has so many, with a limit
// of 0 for none.
func pageSize(limit, have int) int32 {
	if limit == 0 {
		return 1000
	}
	return int32(min(limit-have, 1000))
}

func versionCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show which version this is",
		Args:  words(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			version, revision := built()
			m := &structpb.Struct{Fields: map[string]*structpb.Value{
				"version": structpb.NewStringValue(version), "revision": structpb.NewStringValue(revision),
				"go": structpb.NewStringValue(runtime.Version()), "platform": structpb.NewStringValue(runtime.GOOS + "/" + runtime.GOARCH),
			}}
			return o.write(cmd.OutOrStdout(), m, func(t *table) {
				t.row(strings.TrimSpace(fmt.Sprintf("lifecyclectl %s %s", version, revision)))
				t.row(fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH))
			})
		},
	}
	o.register(cmd)
	return cmd
}

// built returns what the linker recorded: the version of the module, and
// the revision, when the program was built in a repository.
func built() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", ""
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	if revision != "" {
		revision += changed
	}
	return info.Main.Version, revision
}
