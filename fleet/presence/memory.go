package presence

import (
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// memoryLimit knows the limit of this process's memory. To find it takes more system calls
// than all else that an idle process does for its announcements, so it is looked up once a
// minute.
type memoryLimit struct {
	at    time.Time
	limit int64 // 0 for none
	file  string
}

// memory returns the memory of this process's container: what is in use, without files
// that the kernel may drop at once, as the kubelet counts it. Without a limit it is what the
// process itself uses.
func (l *memoryLimit) memory() Memory {
	if l.at.IsZero() || time.Since(l.at) >= time.Minute {
		limit, file, err := cgroup.MemoryLimit(os.DirFS("/"))
		if err != nil {
			limit = 0
		}
		*l = memoryLimit{time.Now(), limit, file}
	}
	if l.limit <= 0 {
		return Memory{Used: resident()}
	}
	dir := path.Dir("/" + strings.TrimPrefix(l.file, "/"))
	for _, version := range []struct{ used, inactive string }{ // of cgroups, 2 and 1
		{"memory.current", "inactive_file"},
		{"memory.usage_in_bytes", "total_inactive_file"},
	} {
		text, err := os.ReadFile(path.Join(dir, version.used))
		if err != nil {
			continue
		}
		used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(path.Join(dir, "memory.stat")) // without it nothing is known to be inactive
		return Memory{Used: max(0, used-field(stat, version.inactive)), Limit: l.limit}
	}
	return Memory{}
}

// resident returns the memory of this process without shared files, 0 where the system does not
// tell.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm") // proc(5): pages in all, resident, shared
	words := strings.Fields(string(text))
	if err != nil || len(words) < 3 {
		return 0
	}
	all, err := strconv.ParseInt(words[1], 10, 64)
	shared, err2 := strconv.ParseInt(words[2], 10, 64)
	if err != nil || err2 != nil {
		return 0
	}
	return max(0, all-shared) * int64(os.Getpagesize())
}
