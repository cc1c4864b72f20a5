//go:build !unix

package main

import (
	"context"
	"io"
)

// whileRead is for systems that report a reader that has gone only with the next
// line.
func whileRead(ctx context.Context, _ io.Writer) (_ context.Context, stop func()) {
	return ctx, func() {}
}
