package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// mill is the configuration of a part, with defaults that its owner fills in.
type mill struct {
	Name   string        `koanf:"name"`
	Stones int           `koanf:"stones"`
	Rest   time.Duration `koanf:"rest" off:"true"`
	Wheel  wheel         `koanf:"wheel"`
	Grain  func()        `koanf:"-"`
}

type wheel struct{ Blades int }

func (w wheel) WithDefaults() wheel {
	if w.Blades == 0 {
		w.Blades = 12
	}
	return w
}

func (w wheel) Validate() error {
	if w.Blades < 3 {
		return fmt.Errorf("blades: %d must be 3 or more", w.Blades)
	}
	return nil
}

func (m mill) WithDefaults() mill {
	if m.Name == "" {
		m.Name = "mill"
	}
	if m.Stones == 0 {
		m.Stones = 2
	}
	m.Wheel = m.Wheel.WithDefaults()
	return m
}

func (m mill) Validate() error {
	var errs []error
	if m.Name == "" {
		errs = append(errs, errors.New("Name is empty, want one"))
	}
	if m.Stones < 2 {
		errs = append(errs, fmt.Errorf("Stones is %d, want 2 or more", m.Stones))
	}
	return errors.Join(append(errs, m.Wheel.Validate())...)
}

type village struct {
	Mill  mill  `koanf:"mill"`
	Spare *mill `koanf:"spare"`
}

func loadVillage(t *testing.T, content string) (village, error) {
	return Load[village](write(t, "village.yaml", content), WithEnviron(nil), WithArgs(nil), WithLogger(quiet))
}

// A section need not set all its keys: it is checked with its
// defaults, and stays as it was given.
func TestSectionsAreCheckedWithTheirDefaults(t *testing.T) {
	for content, want := range map[string]village{
		"# nothing":                    {},
		"mill: {stones: 3}":            {Mill: mill{Stones: 3}},
		"mill: {rest: off}":            {Mill: mill{Rest: -1}},
		"mill: {rest: 0}":              {Mill: mill{Rest: -1}},
		"spare: {wheel: {blades: 20}}": {Spare: &mill{Wheel: wheel{Blades: 20}}},
	} {
		got, err := loadVillage(t, content)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", content, got, err)
		}
	}
}

// A program has one App: which of two sections were its configuration, no rule could say.
func TestTwoLifecycleSectionsAreAMistake(t *testing.T) {
	type part struct{ Lifecycle *lifecycle.Config }
	_, err := Load[struct {
		Lifecycle lifecycle.Config
		Part      part
	}](write(t, "village.yaml", "# nothing"), WithEnviron(nil), WithArgs(nil))
	if err == nil || !strings.Contains(err.Error(), "lifecycle and part.lifecycle") {
		t.Errorf("the error is %v", err)
	}
}

// A fault of a section names its key and the source, once.
func TestFaultsOfSectionsNameTheirKeys(t *testing.T) {
	_, err := loadVillage(t, "mill:\n  stones: 1\n  wheel:\n    blades: 2\n")
	want := []string{
		"config: mill.stones is 1, want 2 or more (mill.stones is from ",
		"config: mill.wheel.blades: 2 must be 3 or more (mill.wheel.blades is from ",
	}
	for _, text := range want {
		if err == nil || strings.Count(err.Error(), text) != 1 {
			t.Errorf("the error does not say once %q: %v", text, err)
		}
	}
	if err != nil && strings.Count(err.Error(), "config: ") != len(want) {
		t.Errorf("the error has other faults: %v", err)
	}
}
