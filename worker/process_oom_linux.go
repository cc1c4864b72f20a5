package worker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// watchOOM returns a function that reports whether the kernel has killed a
// process of the program's cgroup since then because memory ran out. Call that
// function before the program is reaped. The cgroup may have other processes. But
// when a SIGKILL that this process did not send has ended the program too, the
// answer is almost certain.
func watchOOM(cmd *exec.Cmd) func() bool {
	pid := cmd.Process.Pid
	file, before := oomKills(pid)
	return func() bool {
		if count, err := readOOM(file); err == nil && count > before {
			return true
		}
		// The program may have been moved to another cgroup since. (In v1 a
		// zombie's cgroup is the root.)
		now, count := oomKills(pid)
		return now != file && count > 0
	}
}

// oomKills returns the file that counts the kills of the process's cgroup, and
// the count.
func oomKills(pid int) (file string, count int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0
	}
	for _, file := range oomFiles(string(text)) {
		if count, err := readOOM(file); err == nil {
			return file, count
		}
	}
	return "", 0
}

// oomFiles returns the possible paths of a cgroup's counter. In a container the
// kernel reports the path of the host, while the cgroup itself is mounted at the
// root.
func oomFiles(cgroup string) []string {
	var files []string
	for line := range strings.Lines(cgroup) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case id == "0" && controllers == "":
			files = append(files, filepath.Join("/sys/fs/cgroup", path, "memory.events"), "/sys/fs/cgroup/memory.events")
		case controllers == "memory":
			const dir, file = "/sys/fs/cgroup/memory", "memory.oom_control"
			files = append(files, filepath.Join(dir, path, file), filepath.Join(dir, file))
		}
	}
	return files
}

// readOOM returns the line "oom_kill N" of memory.events (cgroup v2) or
// memory.oom_control (v1).
func readOOM(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, errors.New("no oom_kill in " + file)
}
