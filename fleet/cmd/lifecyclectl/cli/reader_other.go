//go:build !unix

package cli

import (
	"context"
	"io"
)

// WhileRead is for systems that report a reader that has gone only with the next
// line.
func WhileRead(ctx context.Context, _ io.Writer) (_ context.Context, stop func()) {
	return ctx, func() {}
}
