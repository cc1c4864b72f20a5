package contain

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage reads what the group uses.
func (g *Group) Usage() (u Usage) {
	for _, d := range g.dirs {
		if d.v2 {
			d.addV2(&u)
		} else {
			d.addV1(&u)
		}
		u.PIDs = max(u.PIDs, int(value(d.read("pids.current"), "")))
		u.Refused = max(u.Refused, int(value(d.read("pids.events"), "max")))
	}
	return u
}

func (d dir) addV2(u *Usage) {
	u.Memory = value(d.read("memory.current"), "")
	u.MemoryPeak = value(d.read("memory.peak"), "")
	u.OOMKills = int(value(d.read("memory.events"), "oom_kill"))
	cpu := d.read("cpu.stat")
	u.CPU = time.Duration(value(cpu, "usage_usec")) * time.Microsecond
	u.Throttled = time.Duration(value(cpu, "throttled_usec")) * time.Microsecond
}

// addV1 keeps what a hierarchy with another controller has said.
func (d dir) addV1(u *Usage) {
	u.Memory = max(u.Memory, value(d.read("memory.usage_in_bytes"), ""))
	u.MemoryPeak = max(u.MemoryPeak, value(d.read("memory.max_usage_in_bytes"), ""))
	u.OOMKills = max(u.OOMKills, int(value(d.read("memory.oom_control"), "oom_kill")))
	u.CPU = max(u.CPU, time.Duration(value(d.read("cpuacct.usage"), "")))
	u.Throttled = max(u.Throttled, time.Duration(value(d.read("cpu.stat"), "throttled_time")))
}

// OOMKills returns how many processes of the cgroup in a directory the kernel has killed
// because memory ran out. ok is false when the cgroup does not count them.
func OOMKills(path string) (kills int, ok bool) {
	for _, file := range []string{"memory.events", "memory.oom_control"} {
		if text := (dir{path: path}).read(file); text != nil {
			return int(value(text, "oom_kill")), true
		}
	}
	return 0, false
}

// read returns the text of a file, nil when there is none.
func (d dir) read(file string) []byte {
	text, err := os.ReadFile(filepath.Join(d.path, file))
	if err != nil {
		return nil
	}
	return text
}

// value returns the number in a line "NAME NUMBER", or, for no name, the number
// that is all of the text. It is 0 when there is none.
func value(text []byte, name string) int64 {
	for line := range strings.Lines(string(text)) {
		number, isNamed := strings.CutPrefix(line, name+" ")
		if name == "" || isNamed {
			n, _ := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			return n
		}
	}
	return 0
}
