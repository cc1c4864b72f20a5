package cli

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

// Term is one part of a selector: a key has a value, or has it not.
type Term struct {
	Key, Value string
	Not        bool
}

// ParseSelector reads KEY=VALUE and KEY!=VALUE with commas between them.
func ParseSelector(text string) (list []Term, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(one, "=")
		key, not := strings.CutSuffix(key, "!")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, fmt.Errorf("--selector has %q: want KEY=VALUE or KEY!=VALUE, with commas between them", one)
		}
		list = append(list, Term{key, strings.TrimSpace(strings.TrimPrefix(value, "=")), not})
	}
	return list, nil
}

// ForEach does something with each object of a selector, one after the other, and shows the
// results. One that fails does not stop the others; the error then says "2 of 5" and why,
// such as "entities were not moved".
func ForEach[T interface{ GetId() string }](c *Call, list []T, why string, do func(T) (proto.Message, output.Cell, error)) error {
	out := c.Rows([]string{"ID", "RESULT"}, 28, 10)
	failed := 0
	for _, one := range list {
		answer, result, err := do(one)
		if c.Context().Err() != nil {
			return context.Canceled
		}
		if err != nil {
			failed++
			result = output.Bad(Message(err))
		}
		if c.Format.IsTable() || err == nil {
			if err := out.Add(answer, one.GetId(), result); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return Fail(ExitFindings, "%d of %d %s", failed, len(list), why)
	}
	return nil
}
