package presence

import (
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
)

// memory returns the memory of this process's container: what is in use, without files
// that the kernel may drop at once, as the kubelet counts it. Without a limit, and in a
// container of cgroups version 1, it is what the process itself uses. file has the limit, "" for none.
func memory() (m Memory, file string) {
	limit, file, err := cgroup.MemoryLimit(os.DirFS("/"))
	if err != nil || limit <= 0 {
		return Memory{Used: resident()}, file
	}
	dir := path.Dir("/" + strings.TrimPrefix(file, "/"))
	text, _ := os.ReadFile(path.Join(dir, "memory.current"))
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil { // not of cgroups version 2
		return Memory{Used: resident(), Limit: limit}, file
	}
	stat, _ := os.ReadFile(path.Join(dir, "memory.stat")) // without it nothing is known to be inactive
	return Memory{Used: max(0, used-field(stat, "inactive_file")), Limit: limit}, file
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
