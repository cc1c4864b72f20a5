package config

import (
	"strings"
	"testing"
)

// A nil option is an error that says which one it is.
func TestANilOptionIsAnError(t *testing.T) {
	type T struct{ Port int }
	opts := []Option{WithArgs(nil), nil, WithEnviron(nil), nil}
	_, loadErr := Load[T]("", opts...)
	_, openErr := Open[T]("", opts...)
	_, keysErr := Keys[T]("", opts...)
	for name, err := range map[string]error{"Load": loadErr, "Open": openErr, "Keys": keysErr} {
		if err == nil || !strings.Contains(err.Error(), "option 2 is nil") || !strings.Contains(err.Error(), "option 4 is nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The given content counts, and not the file of that name. Its name says the format.
func TestContentInPlaceOfTheFile(t *testing.T) {
	type T struct{ Port int }
	load := func(name, content string) (T, error) {
		return Load[T](name, WithContent([]byte(content)), WithArgs(nil), WithEnviron(nil))
	}
	if got, err := load(write(t, "a.yaml", "port: 1\n"), "port: 2\n"); err != nil || got.Port != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := load("none.toml", "port = 3\n"); err != nil || got.Port != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := load("none.yaml", "port: x\n"); err == nil || !strings.Contains(err.Error(), "none.yaml:1: port") {
		t.Errorf("%v", err)
	}
	if _, err := load("none.yaml", ""); err == nil || !strings.Contains(err.Error(), "the file is empty") {
		t.Errorf("an empty file is a fault, as on a disk: %v", err)
	}
}
