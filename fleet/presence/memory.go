package presence

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// memory returns the memory of this process's container: what is in use, without files
// that the kernel may drop at once, as the kubelet counts it. It is zero without a limit.
func memory() Memory {
	limit, file := limits.now()
	if limit <= 0 {
		return Memory{}
	}
	dir := path.Dir("/" + strings.TrimPrefix(file, "/"))
	for _, names := range [][2]string{{"memory.current", "inactive_file"}, {"memory.usage_in_bytes", "total_inactive_file"}} {
		text, err := os.ReadFile(path.Join(dir, names[0]))
		if err != nil {
			continue
		}
		used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			continue
		}
		return Memory{Used: max(0, used-stat(path.Join(dir, "memory.stat"), names[1])), Limit: limit}
	}
	return Memory{}
}

// limitAge is how old the limit of the memory may be. To find it takes more system calls
// than all else that an idle process does for its announcements.
const limitAge = time.Minute

// limits has the limit of this process's memory, which seldom changes.
var limits limitMemory

type limitMemory struct {
	mu    sync.Mutex // guards the fields below
	at    time.Time
	limit int64
	file  string
}

// now returns the limit, 0 for none, and its file.
func (l *limitMemory) now() (limit int64, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := time.Since(l.at); age >= 0 && age < limitAge {
		return l.limit, l.file
	}
	limit, file, err := cgroup.MemoryLimit(os.DirFS("/"))
	if err != nil {
		limit = 0
	}
	l.at, l.limit, l.file = time.Now(), limit, file
	return limit, file
}

// stat returns one number of a memory.stat, 0 when it has none.
func stat(file, name string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), " "); ok && key == name {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
