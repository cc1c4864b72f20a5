package workflows

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func watch() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "watch TYPE [ID]",
		Short: "Show the entities of a workflow, or one, and then every change",
		Long: `Show the entities of a workflow, or one, and then every change, until it is
interrupted. It waits for a server that is away and then shows what changed,
nothing twice. When an entity changes faster than it is read, only the last
change is shown.

With -o json each change is one line with "kind" and "entity".`,
		Args:              cli.Words("TYPE", "[ID]"),
		ValidArgsFunction: cli.CompleteEntities,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		return watchEntities(c, c.Args[0], c.Arg(1), nil)
	})
}

// watchEntities shows entities and every change: those that are wanted, and that one is not
// any more. A nil wanted wants all.
func watchEntities(c *cli.Call, typ, id string, wanted func(*operatorv1.Entity) bool) error {
	out := c.Rows([]string{"AT", "ID", "PHASE", "ETAG"}, 20, 24, 14, 6)
	show := func(kind operatorv1.WatchResponse_Kind, e *operatorv1.Entity, cells ...any) error {
		return out.Add(&operatorv1.WatchResponse{Kind: kind, Entity: e}, cells...)
	}
	changes := cli.Changes[*operatorv1.Entity]{
		Same:   func(a, b *operatorv1.Entity) bool { return a.GetRevision() == b.GetRevision() },
		Wanted: wanted,
		Put: func(e *operatorv1.Entity) error {
			return show(operatorv1.WatchResponse_KIND_PUT, e, output.Moment(e.GetUpdatedAt()), e.GetId(), output.State(e.GetPhase()), e.GetEtag())
		},
		Gone: func(id string, _ *operatorv1.Entity) error {
			at := time.Now().UTC().Format(time.RFC3339)
			return show(operatorv1.WatchResponse_KIND_DELETED, &operatorv1.Entity{Type: typ, Id: id}, at, id, output.Faint("(deleted)"), "")
		},
		Unwanted: func(e *operatorv1.Entity) error {
			note := output.Faint("(no longer selected)")
			return show(operatorv1.WatchResponse_KIND_DELETED, e, output.Moment(e.GetUpdatedAt()), e.GetId(), output.State(e.GetPhase()), note)
		},
	}
	ctx, stop := cli.WhileRead(c.Context(), c.OutOrStdout())
	defer stop()
	return cli.Follow(ctx, c.Notices(), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchResponse], error) {
		return c.Workflows.Watch(ctx, &operatorv1.WatchRequest{Type: typ, Id: id})
	}, changes.Begin, func(m *operatorv1.WatchResponse) error {
		return changes.Take(m.GetKind(), m.GetEntity().GetId(), m.GetEntity())
	})
}
