package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Kinds of server.
const (
	Ours  = "ours"  // an App with the default Config
	Sleep = "sleep" // sleeps 5 s on SIGTERM, then calls Shutdown
)

// Result is what one measurement found: a client, a scenario and a kind of server.
type Result struct {
	Client   string `json:"client"`
	Scenario string `json:"scenario"`
	Server   string `json:"server"`
	// Proxy: a proxy is in front of both servers, and Scenario is its name.
	Proxy bool   `json:"proxy,omitempty"`
	Note  string `json:"note,omitempty"` // versions
	// Missing says why it was not measured.
	Missing string `json:"missing,omitempty"`
	// Sent are the requests that the client began and that were not refused.
	Sent int `json:"sent"`
	// Lost of them failed: the client had a connection, or made one that was accepted.
	// Errors says what the client said.
	Lost   int            `json:"lost"`
	Errors map[string]int `json:"errors,omitempty"`
	// Refused is how many requests found no server: their connection was refused, or they
	// failed after the only server had ended.
	Refused int `json:"refused"`
	// Late is how many connections the balancer sent to the old server after SIGTERM.
	Late int `json:"late,omitempty"`
	// ProxyErrors has the errors in the log of a proxy, until the process had ended. It may
	// have sent such a request elsewhere, so that its client lost nothing.
	ProxyErrors map[string]int `json:"proxy_errors,omitempty"`
	// Took is the time from SIGTERM to the end of the process, in seconds.
	Took float64 `json:"took"`
}

// Name is CLIENT/SCENARIO/SERVER.
func (r Result) Name() string { return r.Client + "/" + r.Scenario + "/" + r.Server }

// Results are results in the order of the page.
type Results []Result

// Put adds a result, or replaces the one of that name.
func (rs *Results) Put(r Result) {
	i := slices.IndexFunc(*rs, func(old Result) bool { return old.Name() == r.Name() })
	if i < 0 {
		*rs = append(*rs, r)
		return
	}
	(*rs)[i] = r
}

// Write writes the results as JSON, a line for each.
func (rs Results) Write(file string) error {
	var b bytes.Buffer
	b.WriteString("[")
	for i, r := range rs {
		if i > 0 {
			b.WriteString(",")
		}
		one, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode the result of %s: %w", r.Name(), err)
		}
		b.WriteString("\n")
		b.Write(one)
	}
	b.WriteString("\n]\n")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// ReadResults reads what Write wrote.
func ReadResults(file string) (Results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	var rs Results
	if err := json.Unmarshal(text, &rs); err != nil {
		return nil, fmt.Errorf("read the results in %s: %w", file, err)
	}
	return rs, nil
}
