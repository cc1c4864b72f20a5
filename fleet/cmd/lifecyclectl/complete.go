package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// ask asks the server for words that complete a command line. A shell waits for
// them, so without a quick answer it returns none.
func ask(r *remote, words func(ctx context.Context, a *api) []string) ([]string, cobra.ShellCompDirective) {
	a, err := r.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return words(ctx, a), cobra.ShellCompDirectiveNoFileComp
}

// first completes the first argument with the result of words.
func first(r *remote, words func(ctx context.Context, a *api) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return ask(r, words)
	}
}

func completeTypes(r *remote) cobra.CompletionFunc {
	return first(r, func(ctx context.Context, a *api) []string { return a.types(ctx) })
}

// completeEntities completes a type and then an id of it.
func completeEntities(r *remote) cobra.CompletionFunc {
	types := completeTypes(r)
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return types(cmd, args, word)
		}
		return ask(r, func(ctx context.Context, a *api) []string {
			list, err := a.Workflows.ListEntities(ctx, &operatorv1.ListEntitiesRequest{Type: args[0], Contains: word, PageSize: 100})
			if err != nil {
				return nil
			}
			return ids(list.GetEntities())
		})
	}
}

// completeTransition completes a type, an id, and the phases that may come next.
func completeTransition(r *remote) cobra.CompletionFunc {
	entities := completeEntities(r)
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 2 {
			return entities(cmd, args, word)
		}
		return ask(r, func(ctx context.Context, a *api) []string {
			e, err := a.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: args[0], Id: args[1]})
			if err != nil {
				return nil
			}
			return e.GetNext()
		})
	}
}

func completePhases(r *remote) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return ask(r, func(ctx context.Context, a *api) (names []string) {
			d, err := a.Workflows.GetDefinition(ctx, &operatorv1.GetDefinitionRequest{Type: args[0]})
			if err != nil {
				return nil
			}
			for _, p := range d.GetPhases() {
				names = append(names, p.GetName())
			}
			return names
		})
	}
}

func completeProcesses(r *remote) cobra.CompletionFunc {
	return first(r, func(ctx context.Context, a *api) []string {
		list, err := a.Processes.ListProcesses(ctx, &operatorv1.ListProcessesRequest{PageSize: 1000})
		if err != nil {
			return nil
		}
		return ids(list.GetProcesses())
	})
}

func completeWorkers(r *remote) cobra.CompletionFunc {
	return first(r, func(ctx context.Context, a *api) []string {
		list, err := a.Workers.ListWorkers(ctx, &operatorv1.ListWorkersRequest{PageSize: 200})
		if err != nil {
			return nil
		}
		return ids(list.GetWorkers())
	})
}

func ids[T interface{ GetId() string }](list []T) []string {
	ids := make([]string, len(list))
	for i, x := range list {
		ids[i] = x.GetId()
	}
	return ids
}
