package presence

import (
	"encoding/json"
	"slices"
	"time"
)

// lasting returns the JSON of p without what changes in an idle process: when it looked at
// itself, when its checks ran, what its servers have accepted, and its use of memory.
func lasting(p Process) ([]byte, error) {
	p.Memory, p.Usage, p.Status.At = Memory{}, Usage{}, time.Time{}
	p.Status.Probes = slices.Clone(p.Status.Probes)
	for i := range p.Status.Probes {
		c := &p.Status.Probes[i]
		c.Checked, c.Latency, c.Runs, c.Running = time.Time{}, 0, 0, 0
	}
	p.Status.Servers = slices.Clone(p.Status.Servers)
	for i := range p.Status.Servers {
		p.Status.Servers[i].Accepted, p.Status.Servers[i].LastArrival = 0, time.Time{}
	}
	return json.Marshal(p)
}

// sameMemory reports whether the use of memory has changed by at most 5 % of its limit, or
// without one by at most a tenth or 16 MiB.
func sameMemory(a, b Memory) bool {
	moved := max(a.Used, b.Used) - min(a.Used, b.Used)
	if a.Limit != b.Limit {
		return false
	}
	if a.Limit > 0 {
		return moved <= a.Limit/20
	}
	return moved <= max(16<<20, max(a.Used, b.Used)/10)
}
