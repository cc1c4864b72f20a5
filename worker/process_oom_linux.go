package worker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/contain"
)

// watchOOM returns a function that reports whether the kernel has killed a process of the
// program's cgroup since then because memory ran out. The cgroup may have other processes.
// But when a SIGKILL that this process did not send has ended the program too, the answer is
// almost certain.
func watchOOM(cmd *exec.Cmd) func() bool {
	dir, before := oomKills(cmd.Process.Pid)
	return func() bool {
		count, _ := contain.OOMKills(dir)
		return dir != "" && count > before
	}
}

// oomKills returns the directory of the process's cgroup that counts kills, and the count. In a
// container the kernel reports the path of the host, while the cgroup itself is mounted at the
// root.
func oomKills(pid int) (dir string, count int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // a process that is gone has none
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		root, ok := map[string]string{"": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}[controllers]
		if !ok {
			continue
		}
		for _, dir := range []string{filepath.Join(root, path), root} {
			if count, ok := contain.OOMKills(dir); ok {
				return dir, count
			}
		}
	}
	return "", 0
}
