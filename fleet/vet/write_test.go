package vet_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/vet"
)

var update = flag.Bool("update", false, "write docs/vet.md anew")

// aReport has findings of every severity, one of them in standard input and one
// in a file whose name is no URL.
func aReport() vet.Report {
	broken := strings.Replace(clean, "replicas: 3", "replicas: 1", 1)
	return vet.Checker{Config: lifecycle.Config{DrainInterval: 20 * time.Second}}.Check(
		vet.File{Name: "-", Data: []byte(broken)}, vet.File{Name: "a folder/m 100%.yaml", Data: []byte("kind: [\n")})
}

func TestJSONIsTheReport(t *testing.T) {
	var out bytes.Buffer
	if err := aReport().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Findings []map[string]any
		Objects  int
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) != len(aReport().Findings) || got.Objects != 1 || got.Findings[0]["severity"] != "error" && got.Findings[0]["severity"] != "info" {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	if err := (vet.Report{}).WriteJSON(&out); err != nil || !strings.Contains(out.String(), `"findings": []`) {
		t.Errorf("nothing found is an empty array: %s, %v", out.String(), err)
	}
}

// TestSARIFIsValid holds the output against what the standard demands of the
// properties that are there: section numbers are those of SARIF 2.1.0.
func TestSARIFIsValid(t *testing.T) {
	report := aReport()
	var out bytes.Buffer
	if err := report.WriteSARIF(&out); err != nil {
		t.Fatal(err)
	}
	type text struct{ Text string }
	var log struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			ColumnKind string
			Tool       struct {
				Driver struct {
					Name, InformationURI string
					Rules                []struct {
						ID                                string
						ShortDescription, FullDescription text
						DefaultConfiguration              struct{ Level string }
					}
				}
			}
			Results []struct {
				RuleID    string
				RuleIndex int
				Level     string
				Message   text
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine, StartColumn int }
					}
					LogicalLocations []struct{ FullyQualifiedName, Kind string }
				}
			}
		}
	}
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields() // a property that is not in the list above was not looked at
	if err := d.Decode(&log); err != nil {
		t.Fatal(err)
	}
	if log.Version != "2.1.0" || len(log.Runs) != 1 { // 3.13
		t.Fatalf("%+v", log)
	}
	run := log.Runs[0]
	driver := run.Tool.Driver
	if driver.Name == "" || run.ColumnKind != "utf16CodeUnits" && run.ColumnKind != "unicodeCodePoints" { // 3.19, 3.14.27
		t.Errorf("%+v", driver)
	}
	levels := []string{"none", "note", "warning", "error"} // 3.27.10
	for _, r := range driver.Rules {
		if r.ID == "" || r.ShortDescription.Text == "" || r.FullDescription.Text == "" || !slices.Contains(levels, r.DefaultConfiguration.Level) { // 3.49
			t.Errorf("rule %+v", r)
		}
	}
	if len(run.Results) != len(report.Findings) {
		t.Errorf("%d results of %d findings", len(run.Results), len(report.Findings))
	}
	seen := make(map[string]bool)
	for _, r := range run.Results {
		if r.RuleIndex < 0 || r.RuleIndex >= len(driver.Rules) || driver.Rules[r.RuleIndex].ID != r.RuleID { // 3.27.6
			t.Errorf("ruleIndex %d is not %s", r.RuleIndex, r.RuleID)
		}
		if r.Message.Text == "" || !slices.Contains(levels, r.Level) || len(r.Locations) != 1 { // 3.27.11
			t.Errorf("%+v", r)
			continue
		}
		seen[r.Level] = true
		p := r.Locations[0].PhysicalLocation
		if u, err := url.Parse(p.ArtifactLocation.URI); err != nil || u.Path == "" || strings.Contains(p.ArtifactLocation.URI, " ") || p.Region.StartLine < 1 || p.Region.StartColumn < 1 { // 3.4.3, 3.30.5
			t.Errorf("location %+v: %v", p, err)
		}
	}
	if !seen["note"] || !seen["error"] {
		t.Errorf("the report has too little in it: %v", seen)
	}
}

// TestPageIsCurrent holds docs/vet.md against the rules; make docs writes it.
func TestPageIsCurrent(t *testing.T) {
	const file = "../../docs/vet.md"
	var page bytes.Buffer
	page.WriteString("# What vet looks for\n\n<!-- Made from fleet/vet by make docs. -->\n\n" +
		"`lifecyclectl vet MANIFEST... --config FILE` holds manifests against a service's configuration. The rules, their ids and severities are stable; `--ignore ID` silences one, " +
		"`--fail-on` says from which severity on the exit status is 1.\n\n| rule | severity | speaks when | because |\n| --- | --- | --- | --- |\n")
	for _, r := range vet.Rules() {
		page.WriteString("| `" + r.ID + "` | " + r.Severity.String() + " | " + r.Title + " | " + strings.ReplaceAll(r.Why, "|", "\\|") + " |\n")
	}
	if *update {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if !bytes.Equal(have, page.Bytes()) {
		t.Errorf("%s is not what the rules say: make docs writes it", file)
	}
}

func TestSeverities(t *testing.T) {
	for _, s := range []vet.Severity{vet.Info, vet.Warning, vet.Error} {
		if got, err := vet.ParseSeverity(s.String()); err != nil || got != s {
			t.Errorf("%v: %v, %v", s, got, err)
		}
	}
	if _, err := vet.ParseSeverity("bad"); err == nil || vet.Severity(7).String() != "Severity(7)" {
		t.Error("there is no such severity")
	}
}
