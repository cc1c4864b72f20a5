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
