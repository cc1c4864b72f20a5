// Command lifecycle-run gives a program in any language health planes, metrics, a drain
// before its end, and the work of PID 1:
//
//	lifecycle-run --ready http://127.0.0.1:8080/ -- python3 -m http.server 8080
//
// It is one static file, to copy into the program's image. Every setting is a flag, a key of a file
// (--config) or a variable LIFECYCLE_RUN_…; lifecycle-run --help lists those that most programs need.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/pleme-io/lifecycle-go/internal/run"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		info, _ := debug.ReadBuildInfo()
		fmt.Println("lifecycle-run", info.Main.Version)
		return
	}
	os.Exit(run.Run(context.Background(), "lifecycle-run", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
