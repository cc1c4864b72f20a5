// Package access has the commands about people: who the user is at a server, sign-in and
// sign-out, and the audit of what people did.
//
// Each command asks an operator server through package cli; begin at [Commands]. login.go
// signs a person in.
package access

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command { return []*cobra.Command{login(), logout(), whoami(), audit()} }

func whoami() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "whoami",
		Short: "Show your name and role on the server",
		Long: `Show your name and role on the server: a viewer reads, an inspector
also reads the logs, stacks and configuration of processes, an operator also acts.`,
	}, cli.OfNothing, func(c *cli.Call) error {
		me, err := c.Access.WhoAmI(c.Context(), &operatorv1.WhoAmIRequest{})
		return c.Answer(me, err, func(t *output.Table) {
			t.Row(output.Faint("name"), me.GetName())
			t.Row(output.Faint("role"), me.GetRole())
			for _, g := range me.GetGrants() {
				t.Row(output.Faint("role"), g.GetRole()+whereOf(g))
			}
			t.Row(output.Faint("by"), me.GetMethod())
			t.Row(output.Faint("server"), c.URL)
		})
	})
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

func audit() *cobra.Command {
	var (
		req   operatorv1.ListAuditRequest
		limit int
		since time.Duration
		watch bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "audit",
		Short: "List who did what, or tried to, newest first",
		Long: `List who did what, or tried to, newest first. A server without an audit log
remembers the latest 1000.`,
		Example: `  lifecyclectl audit --who ada --since 24h
  lifecyclectl audit --limit 0 -o json > audit.json`,
	}, cli.OfNothing, func(c *cli.Call) error {
		if since > 0 {
			req.Since = timestamppb.New(time.Now().Add(-since))
		}
		newest := cli.NewestFirst(c.Access.ListAudit, auditKey)
		return cli.List[*operatorv1.AuditEntry]{
			Head:   []string{"AT", "WHO", "ACTION", "TARGET", "DETAIL", "OUTCOME"},
			Widths: []int{20, 12, 24, 24, 20},
			Cells:  auditCells,
			Look: func(ctx context.Context) (proto.Message, error) {
				if watch { // oldest first, as everything that goes on
					return newest(ctx, limit, &req)
				}
				return cli.All(ctx, limit, &req, c.Access.ListAudit)
			},
			Key:     auditKey,
			OnlyNew: true,
		}.Show(c, watch)
	})
	cmd.Flags().IntVar(&limit, "limit", 50, "at most `N`, the newest; 0 is all")
	cmd.Flags().StringVar(&req.Who, "who", "", "only those whose caller contains this `text`")
	cmd.Flags().StringVar(&req.Action, "action", "", "only those whose action contains this `text`")
	cmd.Flags().StringVar(&req.Target, "target", "", "only those whose target contains this `text`")
	cmd.Flags().BoolVar(&req.Refused, "refused", false, "only those that did not succeed")
	cmd.Flags().DurationVar(&since, "since", 0, "only those of the last `time`, such as 24h")
	cli.WatchFlag(cmd, &watch)
	return cmd
}

// auditKey identifies an entry.
func auditKey(e *operatorv1.AuditEntry) string {
	return fmt.Sprint(e.GetAt().AsTime().UnixNano(), e.GetWho(), e.GetAction(), e.GetTarget())
}

func auditCells(e *operatorv1.AuditEntry) []any {
	outcome := output.Bad(e.GetOutcome())
	if e.GetOutcome() == "ok" {
		outcome = output.Good(e.GetOutcome())
	}
	detail := e.GetDetail()
	if e.GetDryRun() {
		detail += " (dry run)"
	}
	return []any{output.Moment(e.GetAt()), e.GetWho(), e.GetAction(), e.GetTarget(), detail, outcome}
}
