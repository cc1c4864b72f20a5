package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// wordsOf returns the words that complete one argument, after the others.
type wordsOf func(ctx context.Context, s *Server, args []string, word string) []string

// completeArgs asks the server for the words that complete each argument. A shell waits for
// them, so without a quick answer it returns none.
func completeArgs(each ...wordsOf) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := Open(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return each[len(args)](ctx, s, args, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// completions has, for each subject of a command, what completes each argument.
var completions = map[Subject][]wordsOf{
	OfWorkflow: {types, entities},
	OfProcess:  {processes},
	OfWorker:   {workers},
}

// CompleteTransitions completes the type, the entity and its next phase.
var CompleteTransitions = completeArgs(types, entities, nextPhases)

func types(ctx context.Context, s *Server, _ []string, _ string) []string { return s.types(ctx) }

func entities(ctx context.Context, s *Server, args []string, word string) []string {
	list, err := s.Workflows.ListEntities(ctx, &operatorv1.ListEntitiesRequest{Type: args[0], Contains: word, PageSize: 100})
	return ids(list.GetEntities(), err)
}

func nextPhases(ctx context.Context, s *Server, args []string, _ string) []string {
	e, err := s.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: args[0], Id: args[1]})
	if err != nil {
		return nil
	}
	return e.GetNext()
}

func processes(ctx context.Context, s *Server, _ []string, _ string) []string {
	list, err := s.Processes.ListProcesses(ctx, &operatorv1.ListProcessesRequest{PageSize: 1000})
	return ids(list.GetProcesses(), err)
}

func workers(ctx context.Context, s *Server, _ []string, _ string) []string {
	list, err := s.Workers.ListWorkers(ctx, &operatorv1.ListWorkersRequest{PageSize: 200})
	return ids(list.GetWorkers(), err)
}

func ids[T interface{ GetId() string }](list []T, err error) (ids []string) {
	if err != nil {
		return nil
	}
	for _, x := range list {
		ids = append(ids, x.GetId())
	}
	return ids
}
