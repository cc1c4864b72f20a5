package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
)

// parseSignal returns the signal of a name, with or without SIG.
func parseSignal(name string) (syscall.Signal, error) {
	if sig, ok := signals[strings.TrimPrefix(strings.ToUpper(name), "SIG")]; ok {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is not a signal: want %s", name, strings.Join(slices.Sorted(maps.Keys(signals)), ", "))
}
