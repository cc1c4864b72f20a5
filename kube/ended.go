package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Ending is how a process ended, as the kubelet has reported it.
type Ending struct {
	// Reason is the kubelet's: "OOMKilled", "Error", "Completed", "Evicted",
	// "ContainerStatusUnknown" …; or "PodDeleted" for a pod that does not exist any more.
	Reason string
	// ExitStatus of the process: 128 and the number of the signal that ended it,
	// such as 137 for SIGKILL; -1 when it is not known.
	ExitStatus int
	// Message is the end of its termination message, or the kubelet's own words.
	Message string
	// Restarts is how often the kubelet has started the container again, in the life of the pod.
	Restarts int
}

// ErrNoEnding is returned by [Client.Ended] when the pod's status does not have the end of
// that process: it still runs, or the kubelet has forgotten it.
var ErrNoEnding = errors.New("kube: the pod's status does not have the end of this process")

// podEnd is the part of a Pod's status (core/v1) that says how its containers ended.
type podEnd struct {
	pod
	Status struct {
		Phase             string            `json:"phase"`
		Reason            string            `json:"reason"`
		Message           string            `json:"message"`
		ContainerStatuses []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name         string         `json:"name"`
	State        containerState `json:"state"`
	LastState    containerState `json:"lastState"`
	RestartCount int            `json:"restartCount"`
}

// containerState has one life of a container, which runs or has ended; neither for a
// container that waits.
type containerState struct {
	Running    *containerLife `json:"running"`
	Terminated *containerLife `json:"terminated"`
}

type containerLife struct {
	Reason     string    `json:"reason"`
	ExitCode   int       `json:"exitCode"`
	Signal     int       `json:"signal"`
	Message    string    `json:"message"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
}

// maxEndMessage is the part of a termination message that is kept, in bytes.
const maxEndMessage = 1 << 10

// Ended returns how a process ended: the one that began at started in a pod of the
// client's namespace. The kubelet keeps the last two ends of a container, and reports one
// within seconds. Of several containers the process belongs to the pod's default container
// (see [SelfConfig].Container) if that lived then, otherwise to the one that started last
// before it.
//
// Give it to presence.Config.Ended, so that a fleet tells a process that ran out of memory,
// one that panicked, and one that was evicted apart:
//
//	presence.Config{Ended: func(ctx context.Context, p presence.Process) (presence.End, error) {
//		e, err := cluster.Ended(ctx, p.Host, p.StartedAt)
//		return presence.End(e), err
//	}}
//
// The pod's service account needs get for pods.
func (c *Client) Ended(ctx context.Context, pod string, started time.Time) (Ending, error) {
	o := c.podObject()
	o.name = pod
	var p podEnd
	err := c.do(ctx, http.MethodGet, "get", o, nil, nil, &p)
	if status(err) == http.StatusNotFound {
		return Ending{Reason: "PodDeleted", ExitStatus: -1, Message: "the pod does not exist any more"}, nil
	}
	if err != nil {
		return Ending{}, err
	}
	container, t := p.endOf(started)
	if t == nil {
		if p.Status.Phase == "Failed" && p.Status.Reason != "" { // evicted: its containers may have no status
			return Ending{Reason: p.Status.Reason, ExitStatus: -1, Message: tail(p.Status.Message)}, nil
		}
		return Ending{}, fmt.Errorf("%w: %s", ErrNoEnding, o)
	}
	e := Ending{Reason: t.Reason, ExitStatus: t.ExitCode, Message: t.Message, Restarts: container.RestartCount}
	if t.Signal != 0 && e.ExitStatus == 0 {
		e.ExitStatus = 128 + t.Signal
	}
	if p.Status.Reason == "Evicted" && e.Reason != "OOMKilled" {
		e.Reason, e.Message = p.Status.Reason, p.Status.Message
	}
	e.Message = tail(e.Message)
	return e, nil
}

// endOf returns the container in which a process began at started, and how that life of the
// container ended; nil while it runs, and when the kubelet has forgotten it.
func (p podEnd) endOf(started time.Time) (of containerStatus, end *containerLife) {
	byDefault, _ := p.main("")
	var best *match
	for _, s := range p.Status.ContainerStatuses {
		for _, state := range []containerState{s.State, s.LastState} {
			life := cmp.Or(state.Terminated, state.Running)
			// The kubelet's times have no fractions of a second.
			switch {
			case life == nil || started.Before(life.StartedAt.Add(-time.Second)):
				continue
			case life == state.Terminated && started.After(life.FinishedAt.Add(time.Second)):
				continue
			}
			since := started.Sub(life.StartedAt)
			its := &match{isByDefault: s.Name == byDefault.Name, beganBefore: since >= 0, distance: since.Abs()}
			if best == nil || its.isBetterThan(best) {
				of, end, best = s, state.Terminated, its
			}
		}
	}
	return of, end
}

// match is how well the life of a container fits a process.
type match struct {
	isByDefault bool // it is of the pod's default container
	beganBefore bool // it began before the process, by the kubelet's whole seconds
	distance    time.Duration
}

func (m *match) isBetterThan(other *match) bool {
	switch {
	case m.isByDefault != other.isByDefault:
		return m.isByDefault
	case m.beganBefore != other.beganBefore:
		return m.beganBefore
	}
	return m.distance < other.distance
}

// tail returns the last maxEndMessage bytes of a message, without half a character.
func tail(message string) string {
	return strings.ToValidUTF8(message[max(0, len(message)-maxEndMessage):], "")
}
