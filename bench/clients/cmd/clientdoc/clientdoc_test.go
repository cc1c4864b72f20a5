package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/bench/clients"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	committed = "../../../../docs/reference/clients.md"
	measured  = "../../../../docs/reference/clients.json"
)

// The tables of the page show the results that were measured last.
func TestThePageIsNotStale(t *testing.T) {
	want, err := render(committed, measured)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error(`docs/reference/clients.md is not what docs/reference/clients.json gives: run "make docs"`)
	}
	for name := range tables {
		if !strings.Contains(want, "<!-- clients: "+name+" -->") {
			t.Errorf("the page has no table %q", name)
		}
	}
}

// A request that was lost is on the page.
func TestEveryLossIsOnThePage(t *testing.T) {
	results := clients.Results{
		{Client: "Go h1", Scenario: "alone", Server: clients.Ours, Sent: 10},
		{Client: "Go h1", Scenario: "alone", Server: clients.Sleep, Sent: 1234, Lost: 3, Errors: map[string]int{"Post: EOF": 2, "something new": 1}},
		{Client: "Go h2", Scenario: "alone", Server: clients.Ours, Missing: "there is no go here"},
	}
	for table, want := range map[string]string{
		"clients": "| Go h1 |  | 0 / 3 | 0 of 10 | 3 of 1,234 | 0 / 0 | 0 / 0 | 0.0 s / 0.0 s |",
		"missing": "- Go h2: there is no go here",
	} {
		if got := tables[table](results); !strings.Contains(strings.ReplaceAll(got, "| |", "|  |"), strings.ReplaceAll(want, "| |", "|  |")) {
			t.Errorf("table %s has no line %q:\n%s", table, want, got)
		}
	}
}
