package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/internal/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const repository = "../.."

func modelText(t *testing.T, model string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, models.Folder, model+".pml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The states of the models are those of the tables in the code.
func TestStatesAreThoseOfTheCode(t *testing.T) {
	want, err := statesFile(repository)
	if err != nil {
		t.Fatal(err)
	}
	if got := modelText(t, "states"); got != want {
		t.Error("states.pml is stale: run \"make docs\" and commit what it writes")
	}
}

// A property stands on a line with the number of the guarantee that it checks.
func TestPropertiesNameTheirGuarantees(t *testing.T) {
	numbers := ""
	pages, err := filepath.Glob(filepath.Join(repository, "docs/reference/guarantees/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatal(err, pages)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		numbers += string(text)
	}
	for _, model := range protocols {
		found := 0
		for line := range strings.Lines(modelText(t, model)) {
			if !property.MatchString(line) {
				continue
			}
			named := number.FindAllString(line, -1)
			if len(named) == 0 {
				t.Errorf("%s: no number beside %s", model, strings.TrimSpace(line))
			}
			for _, n := range named {
				found++
				if !strings.Contains(numbers, "**"+n+"**") {
					t.Errorf("%s: there is no guarantee %s", model, n)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s has no property", model)
		}
	}
}

// Every property of every model holds in all states, and fails without any of the guards.
func TestModels(t *testing.T) {
	if os.Getenv("MODELS") == "" {
		t.Skip("it takes minutes: make models runs it")
	}
	if _, err := models.Check(repository, protocols[0], ""); errors.Is(err, models.ErrNoSpin) {
		t.Skip(err)
	}
	for _, model := range protocols {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			found, err := models.Check(repository, model, "")
			if err != nil || found.Broken != "" {
				t.Fatalf("%v, and %q fails:\n%s", err, found.Broken, strings.Join(found.Steps, "\n"))
			}
			t.Logf("%s states", found.States)
		})
		mutants := mutantsOf(modelText(t, model))
		if len(mutants) == 0 {
			t.Errorf("%s has no mutant", model)
		}
		for _, m := range mutants {
			t.Run(model+" without "+m.name, func(t *testing.T) {
				t.Parallel()
				found, err := models.Check(repository, model, m.name)
				if err != nil || !number.MatchString(found.Broken) {
					t.Fatalf("%v, and no property fails: %q", err, found.Broken)
				}
				t.Logf("%s fails after %s states", found.Broken, found.States)
			})
		}
	}
}
