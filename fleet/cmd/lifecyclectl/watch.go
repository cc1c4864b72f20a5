package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func watchCommand() *cobra.Command {
	var (
		r remote
		o output
	)
	cmd := &cobra.Command{
		Use:   "watch TYPE [ID]",
		Short: "Show the entities of a workflow, or one, and then every change",
		Long: `Show the entities of a workflow, or one, and then every change, until it is
interrupted. It waits for a server that is away and then shows what changed,
nothing twice. When an entity changes faster than it is read, only the last
change is shown.

With -o json each change is one line with "kind" and "entity".`,
		Args: words("TYPE", "[ID]"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			return watchEntities(a, cmd, &o, args[0], append(args, "")[1], nil)
		}),
		ValidArgsFunction: completeEntities(&r),
	}
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// notices reports on stderr that the server is away and that it is back.
func notices(w io.Writer, a *api) watcher {
	return watcher{
		lost: func(err error) {
			why := "the watch ended"
			if err != nil {
				why = message(err)
			}
			fmt.Fprintf(w, "lifecyclectl: lost %s (%s); trying again\n", a.url, printable(why))
		},
		back: func() { fmt.Fprintf(w, "lifecyclectl: %s is back\n", a.url) },
	}
}

// rows is a table whose rows are written as they come.
type rows struct {
	w       io.Writer
	o       *output
	head    []string
	widths  []int
	started bool
}

// add writes one row, or m in another format.
func (r *rows) add(m proto.Message, cells ...any) error {
	if !r.o.tabular() {
		return r.o.item(r.w, m)
	}
	t := r.table()
	t.row(cells...)
	return send(r.w, t.text())
}

// begin writes the head, before there is a row.
func (r *rows) begin() error {
	if !r.o.tabular() {
		return nil
	}
	return send(r.w, r.table().text())
}

// table returns a table with the head, unless that has been written.
func (r *rows) table() *table {
	t := &table{colours: colourful(r.w), least: r.widths}
	if !r.started {
		r.started = true
		t.head(r.head...)
	}
	return t
}

// watchEntities shows entities and every change: those that are wanted, and that one is not
// any more. A nil wanted wants all.
func watchEntities(a *api, cmd *cobra.Command, o *output, typ, id string, wanted func(*operatorv1.Entity) bool) error {
	out := &rows{w: cmd.OutOrStdout(), o: o, head: []string{"AT", "ID", "PHASE", "ETAG"}, widths: []int{20, 24, 14, 6}}
	tell := func(kind operatorv1.WatchResponse_Kind, e *operatorv1.Entity) error {
		m := &operatorv1.WatchResponse{Kind: kind, Entity: e}
		if kind == operatorv1.WatchResponse_KIND_DELETED {
			return out.add(m, time.Now().UTC().Format(time.RFC3339), e.GetId(), cell{"(deleted)", faint}, "")
		}
		return out.add(m, moment(e.GetUpdatedAt()), e.GetId(), state(e.GetPhase()), e.GetEtag())
	}
	unwanted := func(e *operatorv1.Entity) error {
		m := &operatorv1.WatchResponse{Kind: operatorv1.WatchResponse_KIND_DELETED, Entity: e}
		return out.add(m, moment(e.GetUpdatedAt()), e.GetId(), state(e.GetPhase()), cell{"(no longer selected)", faint})
	}
	seen := newMemory(func(a, b uint64) bool { return a == b })
	ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	return follow(ctx, notices(cmd.ErrOrStderr(), a), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.WatchResponse], error) {
		return a.Workflows.Watch(ctx, &operatorv1.WatchRequest{Type: typ, Id: id})
	}, seen.begin, func(m *operatorv1.WatchResponse) error {
		e := m.GetEntity()
		switch m.GetKind() {
		case operatorv1.WatchResponse_KIND_PUT:
			switch {
			case wanted != nil && !wanted(e):
				if seen.drop(e.GetId()) {
					return unwanted(e)
				}
			case seen.put(e.GetId(), e.GetRevision()):
				return tell(m.GetKind(), e)
			}
		case operatorv1.WatchResponse_KIND_DELETED:
			if seen.drop(e.GetId()) {
				return tell(m.GetKind(), e)
			}
		case operatorv1.WatchResponse_KIND_SYNCED:
			for _, gone := range slices.Sorted(slices.Values(seen.sync())) {
				if err := tell(operatorv1.WatchResponse_KIND_DELETED, &operatorv1.Entity{Type: typ, Id: gone}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
