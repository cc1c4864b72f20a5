package top

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func BenchmarkBoard(b *testing.B) {
	board := board{url: "http://127.0.0.1:8090", hasProcesses: true}
	for i := range 1000 {
		p := &operatorv1.Process{Id: fmt.Sprintf("web-%04d", i), Service: "web", Phase: "running", Ready: true}
		board.processes = append(board.processes, p)
	}
	for b.Loop() {
		board.lines(io.Discard, time.Now())
	}
}
