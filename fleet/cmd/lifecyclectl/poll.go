package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// watchFlag adds --watch to a list that the command looks at again and again.
func watchFlag(cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "watch", "w", false, "then show every change; it looks every 2 s")
}

// polled is a list that --watch looks at again and again, because the server has no
// stream of it.
type polled[M proto.Message] struct {
	head   []string
	widths []int
	look   func(context.Context) ([]M, error)
	key    func(M) string // of an item, for as long as it is in the list
	cells  func(M) []any
	same   func(a, b M) bool // whether b tells nothing new; proto.Equal when nil
	only   bool              // only new items are shown: what is not listed any more is merely old
}

// watch shows the list and then every change, until the command is interrupted. It waits
// for a server that is away.
func (p polled[M]) watch(a *api, cmd *cobra.Command, o *output) error {
	out := &rows{w: cmd.OutOrStdout(), o: o, head: append([]string{"SEEN"}, p.head...), widths: append([]int{20}, p.widths...)}
	ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	if err := out.begin(); err != nil {
		return err
	}
	if p.same == nil {
		p.same = func(a, b M) bool { return proto.Equal(a, b) }
	}
	tell := func(kind string, m M, cells ...any) error {
		if o.format == "name" {
			return out.o.item(out.w, m)
		}
		item, err := changeOf(kind, m)
		if err != nil {
			return err
		}
		return out.add(item, append([]any{time.Now().UTC().Format(time.RFC3339)}, cells...)...)
	}
	notice := notices(cmd.ErrOrStderr(), a)
	seen, away := newMemory(p.same), false
	for first := true; ; first = false {
		list, err := p.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller ends a watch by ending ctx
		case err != nil && (first || !passing(err)):
			return err
		case err != nil && !away:
			away = true
			notice.lost(err)
		case err == nil && away:
			away = false
			notice.back()
		}
		if err == nil {
			before := make(map[string]M, len(seen.known))
			for key, m := range seen.known {
				before[key] = m
			}
			seen.begin()
			for _, m := range list {
				if !seen.put(p.key(m), m) {
					continue
				}
				if err := tell("KIND_PUT", m, p.cells(m)...); err != nil {
					return err
				}
			}
			for _, key := range slices.Sorted(slices.Values(seen.sync())) {
				if p.only {
					continue
				}
				if err := tell("KIND_DELETED", before[key], key, cell{"(gone)", faint}); err != nil {
					return err
				}
			}
		}
		if !pause(ctx, pollEvery) {
			return nil
		}
	}
}

// changeOf returns a change as every watch has it in JSON: its kind and the item.
func changeOf(kind string, m proto.Message) (*structpb.Struct, error) {
	text, err := asJSON(m, "")
	if err != nil {
		return nil, err
	}
	item := new(structpb.Value)
	if err := json.Unmarshal(text, item); err != nil {
		return nil, fmt.Errorf("write as JSON: %w", err)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue(kind), "item": item}}, nil
}
