//go:build unix

package lifecycle_test

import (
	"context"
	"fmt"
	"syscall"

	"github.com/pleme-io/lifecycle-go"
)

func ExampleSignalContext() {
	ctx, stop := lifecycle.SignalContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGUSR1)
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	// Output: received signal: user defined signal 1
}
