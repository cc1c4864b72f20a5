package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The end of a process is the one of its own life: another life of the same container does
// not count.
func TestHowAProcessEnded(t *testing.T) {
	at := func(minute int) string { return time.Date(2030, 1, 2, 12, minute, 0, 0, time.UTC).Format(time.RFC3339) }
	died := func(reason string, code, from, to int) fields {
		return fields{"terminated": fields{"reason": reason, "exitCode": code, "message": "last words of " + reason, "startedAt": at(from), "finishedAt": at(to)}}
	}
	running := fields{"running": fields{"startedAt": at(20)}}
	status := func(containers ...any) fields { return fields{"phase": "Running", "containerStatuses": containers} }
	ended := func(name string, state fields) fields { return fields{"name": name, "state": state} }
	sidecar := fields{"name": "sidecar", "state": died("Completed", 0, 30, 40), "lastState": fields{}}
	started := time.Date(2030, 1, 2, 12, 5, 0, 900_000_000, time.UTC)
	for name, tt := range map[string]struct {
		status fields
		want   Ending
		err    error
	}{
		"out of memory, and restarted": {status(sidecar, fields{"state": running, "lastState": died("OOMKilled", 137, 5, 10), "restartCount": 3}), Ending{"OOMKilled", 137, "last words of OOMKilled", 3}, nil},
		"a panic":                      {status(fields{"state": died("Error", 2, 5, 10)}), Ending{"Error", 2, "last words of Error", 0}, nil},
		"a signal":                     {status(fields{"state": fields{"terminated": fields{"reason": "Error", "signal": 11, "startedAt": at(5), "finishedAt": at(10)}}}), Ending{"Error", 139, "", 0}, nil},
		"the life before it":           {status(fields{"state": running, "lastState": died("OOMKilled", 137, 1, 2)}), Ending{}, ErrNoEnding},
		"it runs":                      {status(fields{"state": running}), Ending{}, ErrNoEnding},
		"evicted":                      {fields{"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory", "containerStatuses": []any{fields{"state": died("Error", 137, 5, 10)}}}, Ending{"Evicted", 137, "the node was low on memory", 0}, nil},
		"evicted, without containers":  {fields{"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}, Ending{"Evicted", -1, "the node was low on memory", 0}, nil},
		"long words":                   {status(fields{"state": fields{"terminated": fields{"reason": "Error", "exitCode": 1, "message": strings.Repeat("x", 5000) + "!", "startedAt": at(5), "finishedAt": at(10)}}}), Ending{"Error", 1, strings.Repeat("x", maxEndMessage-1) + "!", 0}, nil},
		"nothing":                      {fields{}, Ending{}, ErrNoEnding},

		// Here the life of envoy has the beginning of the process too.
		"a sidecar that started before it": {
			status(ended("envoy", died("Completed", 0, 1, 40)), ended("web", died("OOMKilled", 137, 5, 10))),
			Ending{"OOMKilled", 137, "last words of OOMKilled", 0}, nil,
		},
		"a sidecar that started in the same second": {
			status(ended("envoy", died("Completed", 0, 5, 40)), ended("web", died("OOMKilled", 137, 5, 10))),
			Ending{"OOMKilled", 137, "last words of OOMKilled", 0}, nil,
		},
		"it runs, and a sidecar has ended": {
			status(ended("envoy", died("Completed", 0, 1, 40)), ended("web", fields{"running": fields{"startedAt": at(5)}})),
			Ending{}, ErrNoEnding,
		},
		"a sidecar that started after it": {
			status(ended("envoy", fields{"running": fields{"startedAt": at(5)}}), ended("web", died("OOMKilled", 137, 4, 10))),
			Ending{"OOMKilled", 137, "last words of OOMKilled", 0}, nil,
		},
		"it was started again within a second": {
			status(fields{"name": "web", "state": fields{"running": fields{"startedAt": "2030-01-02T12:05:01Z"}}, "lastState": died("OOMKilled", 137, 5, 5)}),
			Ending{"OOMKilled", 137, "last words of OOMKilled", 0}, nil,
		},
		"long words of the kubelet": {
			fields{"phase": "Failed", "reason": "Evicted", "message": strings.Repeat("ä", 5000) + "!"},
			Ending{"Evicted", -1, strings.Repeat("ä", maxEndMessage/2-1) + "!", 0}, nil,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			containers := []any{fields{"name": "web"}, fields{"name": "envoy"}}
			f.set(podPath, fields{"spec": fields{"containers": containers}, "status": tt.status})
			c, _ := f.client(t)
			got, err := c.Ended(t.Context(), "web-1", started)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, tt.want, tt.err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, _ := f.client(t)
		if got, err := c.Ended(t.Context(), "web-1", started); err != nil || got.Reason != "PodDeleted" || got.ExitStatus != -1 {
			t.Errorf("a pod that is gone: %+v, %v", got, err)
		}
		f.failWith(forbid(""))
		if _, err := c.Ended(t.Context(), "web-1", started); err == nil || !strings.Contains(err.Error(), `resources: ["pods"], verbs: ["get"]`) {
			t.Errorf("without permission: %v", err)
		}
	})
}
