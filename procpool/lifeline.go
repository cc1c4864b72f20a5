package procpool

import (
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// lifeline is a pipe whose writing end only this process has. Every worker inherits
// the reading end, also through wrappers that do not close it. It ends when this
// process dies, however it dies: a worker that is too busy to read its connection can
// have a thread that waits for it.
type lifeline struct{ reads, writes *os.File }

func newLifeline() (*lifeline, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &lifeline{r, w}, nil
}

// give adds the pipe to the files of a command. It returns the environment variable
// that says which descriptor it is.
func (l *lifeline) give(cmd *exec.Cmd) string {
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), l.reads)
	return wire.EnvLifeline + "=" + strconv.Itoa(2+len(cmd.ExtraFiles))
}

func (l *lifeline) close() {
	if l != nil {
		_ = l.reads.Close()
		_ = l.writes.Close()
	}
}
