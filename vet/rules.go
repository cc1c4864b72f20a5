package vet

import (
	_ "embed"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Rule is one kind of contradiction that vet looks for.
type Rule struct {
	// ID is the stable name of the rule in findings, in SARIF and for --ignore.
	ID       string
	Severity Severity
	// Title says in a few words what is wrong. Why says in a sentence or two what
	// happens because of it.
	Title, Why string
}

// Rules returns every rule, in the order of the documentation.
func Rules() []Rule { return slices.Clone(rules) }

//go:embed rules.yaml
var rulesFile []byte

var rules = func() (list []Rule) {
	if err := yaml.Unmarshal(rulesFile, &list); err != nil {
		panic(err) // the file is part of the program
	}
	return list
}()

// ruleIndex returns the index of a rule, -1 for an id that no rule has.
func ruleIndex(id string) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return r.ID == id })
}
