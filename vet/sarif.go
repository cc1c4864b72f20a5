package vet

import (
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

// sarif is an object of SARIF 2.1.0 (OASIS, 2020), with the names of the standard.
type sarif = map[string]any

// levels are the names of the severities in SARIF.
var levels = [...]string{Info: "note", Warning: "warning", Error: "error"}

// WriteSARIF writes the report as SARIF 2.1.0, which code hosts show beside the
// lines of a change.
func (r Report) WriteSARIF(w io.Writer) error {
	descriptions := []sarif{}
	for _, rule := range rules {
		descriptions = append(descriptions, sarif{
			"id":                   rule.ID,
			"shortDescription":     sarif{"text": rule.Title + "."},
			"fullDescription":      sarif{"text": rule.Why},
			"defaultConfiguration": sarif{"level": levels[rule.Severity]},
		})
	}
	results := []sarif{}
	for _, f := range r.Findings {
		location := sarif{"physicalLocation": sarif{
			"artifactLocation": sarif{"uri": uri(f.File)},
			"region":           sarif{"startLine": max(1, f.Line), "startColumn": max(1, f.Column)},
		}}
		if where := f.where(); where != "" {
			location["logicalLocations"] = []sarif{{"fullyQualifiedName": where, "kind": "object"}}
		}
		results = append(results, sarif{
			"ruleId":    f.Rule,
			"ruleIndex": ruleIndex(f.Rule),
			"level":     levels[f.Severity],
			"message":   sarif{"text": f.Reason + ". To fix it, " + f.Fix + "."},
			"locations": []sarif{location},
		})
	}
	driver := sarif{
		"name":           "lifecyclectl vet",
		"informationUri": "https://github.com/pleme-io/lifecycle-go/blob/main/docs/reference/vet.md",
		"rules":          descriptions,
	}
	return encode(w, sarif{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs":    []sarif{{"tool": sarif{"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}},
	})
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
