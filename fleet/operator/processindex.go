package operator

import (
	"context"
	"math/bits"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// newProcessFeed returns the feed of all processes, which runs until the server is closed. A
// process announces itself every few seconds: watchers get only what is new, so a fleet at rest
// costs them nothing, and lists and pages have the latest.
func (s *Server) newProcessFeed(area Processes) *feed.Feed[*operatorv1.Process] {
	return feed.New(area.Watch, feed.Options[*operatorv1.Process]{
		Retry:  feedRetry,
		Always: true,
		Failed: s.watchFailed("the processes"),
		Merge: func(_ string, old *operatorv1.Process, known bool, new *operatorv1.Process) (*operatorv1.Process, bool) {
			return new, !known || !proto.Equal(newsOf(old), newsOf(new))
		},
	})
}

// newsOf returns what an announcement tells an operator: not its time, nor the use of memory.
// The load of its servers counts in powers of two.
func newsOf(p *operatorv1.Process) *operatorv1.Process {
	news := &operatorv1.Process{
		Service:          p.GetService(),
		Host:             p.GetHost(),
		Pid:              p.GetPid(),
		Version:          p.GetVersion(),
		StartedAt:        p.GetStartedAt(),
		Phase:            p.GetPhase(),
		Ready:            p.GetReady(),
		Suspended:        p.GetSuspended(),
		Reason:           p.GetReason(),
		Waiting:          p.GetWaiting(),
		Units:            p.GetUnits(),
		Probes:           p.GetProbes(),
		Restarts:         p.GetRestarts(),
		Steps:            p.GetSteps(),
		Budget:           p.GetBudget(),
		Truncated:        p.GetTruncated(),
		Suspect:          p.GetSuspect(),
		MemoryLimitBytes: p.GetMemoryLimitBytes(),
	}
	for _, f := range p.GetFindings() { // their texts have times
		news.Findings = append(news.Findings, &operatorv1.Finding{Rule: f.GetRule()})
	}
	for _, s := range p.GetServers() {
		news.Servers = append(news.Servers, &operatorv1.Server{
			InFlight:    int64(bits.Len64(uint64(s.GetInFlight()))),
			Connections: int64(bits.Len64(uint64(s.GetConnections()))),
		})
	}
	return news
}

// synced waits until the server has read which processes there are.
func (s *Server) synced(ctx context.Context) error {
	if s.cfg.Processes == nil {
		return notServed("processes")
	}
	r := s.processes.Follow("", nil)
	defer r.Close()
	for !s.processes.Synced() {
		if _, err := r.Next(ctx, batch); err != nil {
			return Errorf(connect.CodeUnavailable, ReasonUnavailable, "",
				"the processes have not been read yet: try again in a moment")
		}
	}
	return nil
}

// listed returns every process in any order, with what is wrong with it now. The caller must
// not change them.
func (s *Server) listed(ctx context.Context) (list []*operatorv1.Process, err error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	s.processes.Each(func(_ string, p *operatorv1.Process) { list = append(list, p) })
	return list, nil
}

// process returns the process of an id, which may lack the service when no other process has
// the rest of it.
func (s *Server) process(ctx context.Context, id string) (*operatorv1.Process, error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	whole, known := s.processes.Get(id)
	if known && strings.Contains(id, ".") {
		return whole, nil
	}
	var found []*operatorv1.Process
	s.processes.Each(func(key string, p *operatorv1.Process) {
		if _, instance, _ := strings.Cut(key, "."); instance == id {
			found = append(found, p)
		}
	})
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		ids := make([]string, min(len(found), 8))
		for i := range ids {
			ids[i] = found[i].GetId()
		}
		slices.Sort(ids)
		return nil, invalid("id", "several services have a process of this id: %s", strings.Join(ids, ", "))
	case known: // an entry that no process has written
		return whole, nil
	case len(s.deps.outages()) > 0: // it may have come since
		return nil, Errorf(connect.CodeUnavailable, ReasonUnavailable, "", "no process %q is known", clip(id, maxName))
	}
	return nil, Errorf(connect.CodeNotFound, ReasonNotFound, "id", "no such process: %q", clip(id, maxName))
}
