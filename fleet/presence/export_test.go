package presence

import (
	"context"
	"time"
)

// Ask sends a command of any name.
func (f *Fleet) Ask(ctx context.Context, id, do string) error {
	_, err := f.ask(ctx, id, command{Do: do, Who: "ada"})
	return err
}

// Outdated is outdated.
var Outdated = outdated

// Shown is shown.
var Shown = shown

// A busy machine may need longer for the last words of a process.
func init() { leaveTime = 30 * time.Second }
