package sdnotify

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxTermination bounds a text in the termination log. The kubelet keeps the last
// 4096 bytes of all containers of a pod together.
const maxTermination = 1 << 10

// TerminationLog is the file that the kubelet shows as the reason of a
// container's end. The zero value writes nothing. All methods may be called
// concurrently.
type TerminationLog struct {
	name   string // of the service
	path   string
	exists atomic.Bool
	turn   atomic.Uint64
	final  atomic.Bool // Final was called

	mu      sync.Mutex // held while the file is written; guards the fields below
	written uint64     // the number of the Write whose text is in the file
	content string     // that text
}

// Find looks for the file. Call it once, before any other method: a kubelet makes
// the file before it starts the process. The path "off" means no file. Every text
// begins with the name of the service.
func (l *TerminationLog) Find(path, name string) {
	if path == "off" {
		return
	}
	l.path, l.name = path, name
	info, err := os.Stat(path)
	l.exists.Store(err == nil && info.Mode().IsRegular())
}

// Write replaces the content of the file with the text that compose returns. Of
// concurrent calls, the one that began last wins, so that the file has the newest
// state. Without a file Write does not call compose.
func (l *TerminationLog) Write(compose func() string) {
	if l.exists.Load() {
		turn := l.turn.Add(1)
		l.write(compose(), turn)
	}
}

// Final writes content. No later Write changes it.
func (l *TerminationLog) Final(content string) {
	l.final.Store(true)
	l.write(content, math.MaxUint64)
}

// write overwrites the file. The kubelet mounts it into the container: write must
// not create or replace it.
func (l *TerminationLog) write(content string, turn uint64) {
	if !l.exists.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	isFinal := turn == math.MaxUint64
	if turn < l.written || l.final.Load() && !isFinal {
		return
	}
	l.written = turn
	if content == l.content {
		return
	}
	l.content = content
	// If a pipe without a reader has replaced the file, an open without
	// O_NONBLOCK would block.
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = f.WriteString(text.Clip(l.name+": "+content, maxTermination))
}
