package prove

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// Report is what a proof has found.
type Report struct {
	Workload  string    `json:"workload"` // such as deployment/web
	Namespace string    `json:"namespace"`
	Service   string    `json:"service"`
	Port      int       `json:"port"`
	TLS       bool      `json:"tls"`
	Took      float64   `json:"tookSeconds"`
	Sent      int       `json:"sent"`
	Lost      int       `json:"lost"`
	Kinds     []Kind    `json:"kinds"`
	Steps     []Step    `json:"steps"`
	Findings  []Finding `json:"findings"`
	// Killed are the pods whose container SIGKILL ended after the deletion, also when no request
	// was lost.
	Killed []string `json:"killed,omitempty"`
	Pods   []Pod    `json:"pods"`
	// Losses are the lost requests in the order of their loss. When there are very many,
	// it has only the first.
	Losses []Loss `json:"losses"`
}

// Kind has the totals of one kind of client.
type Kind struct {
	Kind string `json:"kind"`
	load.Count
	Skipped string `json:"skipped,omitempty"` // why it was not asked
}

// Loss is one lost request, with its time relative to events in the life of the pod that
// probably lost it. Times are in seconds, negative before the event, and absent when the
// event was not seen.
type Loss struct {
	Kind          string   `json:"kind"`
	How           string   `json:"how"`
	Why           string   `json:"why"`
	Kept          bool     `json:"kept"` // the connection was used before
	Idle          float64  `json:"idleSeconds"`
	Waited        float64  `json:"waitedSeconds"`
	Step          string   `json:"step"`
	Pod           string   `json:"pod,omitempty"`
	AfterDeletion *float64 `json:"afterDeletion,omitempty"`
	AfterEnd      *float64 `json:"afterEnd,omitempty"`
	Cause         string   `json:"cause"`
	// At is when the request was lost, by the clock of this machine.
	At time.Time `json:"at"`

	nearAStop bool // and chance explains it as well
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// since returns the seconds from an event to at; nil when the event was not seen.
func since(event, at time.Time) *float64 {
	if event.IsZero() {
		return nil
	}
	s := seconds(at.Sub(event))
	return &s
}

// report makes the Report, once nothing runs any more.
func (p *proof) report() *Report {
	r := &Report{
		Workload: p.d.String(), Namespace: p.k.namespace, Service: p.svc.Name, Port: int(p.port.Port), TLS: speaksTLS(p.port),
		Pods: p.pods.copies(), Findings: []Finding{}, Losses: []Loss{},
	}
	for _, pod := range r.Pods {
		if !pod.Deleted.IsZero() && pod.ExitCode != nil && *pod.ExitCode == 137 {
			r.Killed = append(r.Killed, pod.Name)
		}
	}
	counts := p.load.counts()
	for _, kind := range load.Kinds {
		c := counts[kind]
		r.Kinds = append(r.Kinds, Kind{kind, c, p.load.first.Skipped[kind]})
		r.Sent += c.Sent
		r.Lost += c.Lost
	}
	for _, l := range p.load.losses() {
		at := l.At()
		one := Loss{
			Kind: l.Kind, How: string(l.How), Why: l.Why, Kept: l.Kept, Idle: seconds(l.Idle), Waited: seconds(l.Lost.Sub(l.Sent)), At: at,
		}
		for i := range p.steps {
			if within(&p.steps[i], at) || i == len(p.steps)-1 && !at.Before(p.steps[i].Ended) {
				one.Step = p.steps[i].Name
			}
		}
		pod, cause := attribute(l, r.Pods, p.pods.none(at))
		if one.Cause = cause; pod != nil {
			one.Pod = pod.Name
			one.AfterDeletion, one.AfterEnd = since(pod.Deleted, at), since(pod.Ended, at)
		}
		r.Losses = append(r.Losses, one)
	}
	p.baselines(r.Losses, r.Pods)
	for i := range p.steps {
		p.stepResult(&p.steps[i])
	}
	r.Steps = p.steps
	r.Findings = append(r.Findings, p.judge(r.Losses, r.Pods)...)
	return r
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s in namespace %s, through service/%s port %d, in %.0f s\n\n", r.Workload, r.Namespace, r.Service, r.Port, r.Took)
	for _, k := range r.Kinds {
		if k.Skipped != "" {
			fmt.Fprintf(&b, "  %-18s %s\n", k.Kind, k.Skipped)
		} else {
			fmt.Fprintf(&b, "  %-18s %6d sent  %6d answered  %5d lost\n", k.Kind, k.Sent, k.Answered, k.Lost)
		}
	}
	b.WriteString("\n")
	for _, s := range r.Steps {
		if s.Skipped != "" {
			fmt.Fprintf(&b, "  %-18s left out: %s\n", s.Name, s.Skipped)
		} else {
			fmt.Fprintf(&b, "  %-18s %6d pods stopped %24d lost\n", s.Name, s.Stopped, s.Lost)
		}
	}
	r.writeKilled(&b)
	if r.Lost == 0 {
		fmt.Fprintf(&b, "\nno request was lost\n")
	} else {
		fmt.Fprintf(&b, "\nlost: %d of %s; times count from the deletion of the pod (T0)\n", r.Lost, number(r.Sent, "request"))
		r.writeLosses(&b)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\nerror: %s\n", f.Rule)
		if f.Path != "" {
			value := ""
			if f.Value != "" {
				value = " is " + f.Value
			}
			fmt.Fprintf(&b, "  %s, %s%s\n", f.Object, f.Path, value)
		} else {
			fmt.Fprintf(&b, "  %s\n", f.Object)
		}
		fmt.Fprintf(&b, "  %s\n  fix: %s\n", f.Reason, f.Fix)
	}
	_, err := io.WriteString(w, output.PrintableLines(b.String()))
	return err
}

// writeKilled says which containers SIGKILL ended, and when within their grace.
func (r *Report) writeKilled(b *bytes.Buffer) {
	if len(r.Killed) == 0 {
		return
	}
	fmt.Fprintf(b, "\nkilled: %d ended by SIGKILL, exit status 137\n", len(r.Killed))
	for _, p := range r.Pods {
		if !slices.Contains(r.Killed, p.Name) {
			continue
		}
		when := "before"
		if p.wasKilled() {
			when = "at"
		}
		fmt.Fprintf(b, "  pod %s T0+%.1fs, %s the end of its grace of %d s %s\n",
			p.Name, seconds(p.Ended.Sub(p.Deleted)), when, p.Grace, p.Reason)
	}
}

// writeLosses groups the losses by pod, kind and how.
func (r *Report) writeLosses(b *bytes.Buffer) {
	type key struct{ pod, kind, how string }
	groups := make(map[key][]Loss)
	var keys []key
	for _, l := range r.Losses {
		k := key{l.Pod, l.Kind, l.How}
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], l)
	}
	slices.SortStableFunc(keys, func(x, y key) int { return strings.Compare(x.pod, y.pod) })
	for i, k := range keys {
		if i == 0 || k.pod != keys[i-1].pod {
			fmt.Fprintf(b, "  %s\n", r.describePod(k.pod))
		}
		times, group := "", groups[k]
		if first, last := group[0].AfterDeletion, group[len(group)-1].AfterDeletion; first != nil && last != nil {
			times = fmt.Sprintf("T0%+.1fs to T0%+.1fs  ", *first, *last)
		}
		fmt.Fprintf(b, "    %5d %-18s %-12s %s%s\n", len(group), k.kind, k.how, times, group[0].Why)
	}
}

// describePod says when each step of the pod's stop happened.
func (r *Report) describePod(name string) string {
	if name == "" {
		return "by no stop"
	}
	for _, p := range r.Pods {
		if p.Name != name || p.Deleted.IsZero() {
			continue
		}
		var parts []string
		if !p.Ended.IsZero() {
			parts = append(parts, fmt.Sprintf("container ended T0%+.1fs", seconds(p.Ended.Sub(p.Deleted))))
		}
		if p.ExitCode != nil {
			parts = append(parts, fmt.Sprintf("exit status %d", *p.ExitCode))
		}
		if p.Said != "" {
			parts = append(parts, fmt.Sprintf("last line %q", p.Said))
		}
		return "pod " + name + ": " + strings.Join(parts, ", ")
	}
	return "pod " + name + ", which was not deleted"
}
