package vet

import (
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

// The parts of SARIF 2.1.0 (OASIS, 2020) that WriteSARIF writes, with the names of
// the standard.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID                   string      `json:"id"`
		ShortDescription     sarifText   `json:"shortDescription"`
		FullDescription      sarifText   `json:"fullDescription"`
		DefaultConfiguration sarifConfig `json:"defaultConfiguration"`
	}
	sarifConfig struct {
		Level string `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

// levels are the names of the severities in SARIF.
var levels = [...]string{Info: "note", Warning: "warning", Error: "error"}

// WriteSARIF writes the report as SARIF 2.1.0, which code hosts show beside the
// lines of a change.
func (r Report) WriteSARIF(w io.Writer) error {
	out := sarifRun{
		ColumnKind: "utf16CodeUnits",
		Results:    []sarifResult{},
		Tool: sarifTool{sarifDriver{
			Name: "lifecyclectl vet", InformationURI: "https://github.com/pleme-io/lifecycle-go/blob/main/docs/vet.md",
		}},
	}
	for _, rule := range rules {
		out.Tool.Driver.Rules = append(out.Tool.Driver.Rules, sarifRule{rule.ID, sarifText{rule.Title + "."}, sarifText{rule.Why}, sarifConfig{levels[rule.Severity]}})
	}
	for _, f := range r.Findings {
		location := sarifLocation{Physical: sarifPhysical{sarifArtifact{uri(f.File)}, sarifRegion{max(1, f.Line), max(1, f.Column)}}}
		if where := f.where(); where != "" {
			location.Logical = []sarifLogical{{where, "object"}}
		}
		out.Results = append(out.Results, sarifResult{
			RuleID: f.Rule, RuleIndex: ruleIndex[f.Rule], Level: levels[f.Severity],
			Message: sarifText{f.Reason + ". To fix it, " + f.Fix + "."}, Locations: []sarifLocation{location},
		})
	}
	return encode(w, sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{out}})
}

// uri returns a file's name as a URI reference. It is relative when the name is.
func uri(name string) string {
	switch name {
	case "-":
		return "stdin"
	case "":
		return "nothing" // an empty reference would be the report itself
	}
	name = filepath.ToSlash(name)
	if strings.HasPrefix(name, "//") {
		name = "/" + strings.TrimLeft(name, "/") // two would begin a host
	}
	return (&url.URL{Path: name}).String()
}
