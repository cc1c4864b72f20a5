package vet_test

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write docs/reference/vet.md anew")

// aReport has findings of every severity, one of them in standard input and one
// in a file whose name is not a URL.
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
		t.Errorf("without findings the array must be empty: %s, %v", out.String(), err)
	}
}

// sarifSchema is an exact copy of the standard's schema, with its errata 01:
// https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json
// © OASIS Open 2023; its notice is beside it.
//
//go:embed testdata/sarif-schema-2.1.0.json
var sarifSchema []byte

// TestSARIFIsValid checks the output against the schema of SARIF 2.1.0, and against
// requirements of the standard that the schema cannot express. The numbers are
// sections of the standard.
func TestSARIFIsValid(t *testing.T) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(sarifSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat() // uri and uri-reference
	if err := c.AddResource("sarif.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("sarif.json")
	if err != nil {
		t.Fatal(err)
	}
	everything := aReport()
	for i, r := range vet.Rules() { // also of rare rules, at unusual places
		everything.Findings = append(everything.Findings, vet.Finding{Rule: r.ID, Severity: r.Severity, File: []string{"", "-", "C:\\a b\\ä?#%.yaml", "../x:y.yaml", "//host/m.yaml"}[i%5], Reason: "a", Fix: "b"})
	}
	for name, report := range map[string]vet.Report{"everything": everything, "nothing": {}, "no file": vet.Checker{Config: lifecycle.Config{DrainMin: time.Hour}}.Check()} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := report.WriteSARIF(&out); err != nil {
				t.Fatal(err)
			}
			log, err := jsonschema.UnmarshalJSON(bytes.NewReader(out.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(log); err != nil {
				t.Errorf("%v\n%s", err, out.String())
			}
			checkSARIF(t, out.Bytes(), report)
		})
	}
}

// checkSARIF checks the requirements that the schema cannot express.
func checkSARIF(t *testing.T, text []byte, report vet.Report) {
	t.Helper()
	var log struct {
		Runs []struct {
			Tool struct {
				Driver struct{ Rules []struct{ ID string } }
			}

			Results []struct {
				RuleID    string
				RuleIndex int
				Level     string
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation struct{ ArtifactLocation struct{ URI string } }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &log); err != nil {
		t.Fatal(err)
	}
	run := log.Runs[0]
	rules := run.Tool.Driver.Rules
	if len(run.Results) != len(report.Findings) {
		t.Fatalf("%d results of %d findings", len(run.Results), len(report.Findings))
	}
	for i, r := range run.Results {
		f := report.Findings[i]
		if r.RuleIndex < 0 || r.RuleIndex >= len(rules) || rules[r.RuleIndex].ID != r.RuleID || r.RuleID != f.Rule { // 3.27.6
			t.Errorf("ruleIndex %d is not %s", r.RuleIndex, r.RuleID)
		}
		if want := map[vet.Severity]string{vet.Info: "note", vet.Warning: "warning", vet.Error: "error"}[f.Severity]; r.Level != want { // 3.27.10
			t.Errorf("%v is level %s, want %s", f.Severity, r.Level, want)
		}
		if !strings.Contains(r.Message.Text, f.Reason) || !strings.Contains(r.Message.Text, f.Fix) || len(r.Locations) != 1 { // 3.27.11
			t.Errorf("%+v of %+v", r, f)
			continue
		}
		// 3.4.3: no file name may look like a scheme or a host.
		uri := r.Locations[0].PhysicalLocation.ArtifactLocation.URI
		if u, err := url.Parse(uri); err != nil || u.Path == "" || u.Scheme != "" || u.Host != "" {
			t.Errorf("the place of %q is %q: %v", f.File, uri, err)
		}
	}
}

// prose is the part of docs/reference/vet.md above the table of the rules.
//
//go:embed testdata/page.md
var prose string

// TestPageIsCurrent compares docs/reference/vet.md with the rules; make docs writes it.
func TestPageIsCurrent(t *testing.T) {
	const file = "../docs/reference/vet.md"
	var page bytes.Buffer
	page.WriteString(prose)
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
		t.Error("an unknown severity was accepted")
	}
}
