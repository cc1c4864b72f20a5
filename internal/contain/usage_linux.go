package contain

import (
	"bufio"
	"bytes"
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
		number(&u.PIDs, d.read("pids.current"), "")
		number(&u.Refused, d.read("pids.events"), "max")
	}
	return u
}

func (d dir) addV2(u *Usage) {
	number(&u.Memory, d.read("memory.current"), "")
	number(&u.MemoryPeak, d.read("memory.peak"), "")
	number(&u.OOMKills, d.read("memory.events"), "oom_kill")
	cpu := d.read("cpu.stat")
	duration(&u.CPU, cpu, "usage_usec", time.Microsecond)
	duration(&u.Throttled, cpu, "throttled_usec", time.Microsecond)
	u.Pressure = Pressure{
		CPU:    someAvg10(d.read("cpu.pressure")),
		Memory: someAvg10(d.read("memory.pressure")),
		IO:     someAvg10(d.read("io.pressure")),
	}
}

func (d dir) addV1(u *Usage) {
	number(&u.Memory, d.read("memory.usage_in_bytes"), "")
	number(&u.MemoryPeak, d.read("memory.max_usage_in_bytes"), "")
	number(&u.OOMKills, d.read("memory.oom_control"), "oom_kill")
	duration(&u.CPU, d.read("cpuacct.usage"), "", time.Nanosecond)
	duration(&u.Throttled, d.read("cpu.stat"), "throttled_time", time.Nanosecond)
}

// OOMKills returns how many processes of the group the kernel has killed because
// memory ran out. ok is false when the group does not count them.
func (g *Group) OOMKills() (kills int, ok bool) {
	for _, d := range g.dirs {
		if kills, ok := OOMKills(d.path); ok {
			return kills, true
		}
	}
	return 0, false
}

// OOMKills is [Group.OOMKills] for the cgroup in a directory.
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

// number sets to when text has the value.
func number[N int | int64](to *N, text []byte, name string) {
	if n := value(text, name); n > 0 {
		*to = N(n)
	}
}

func duration(to *time.Duration, text []byte, name string, unit time.Duration) {
	if n := value(text, name); n > 0 {
		*to = time.Duration(n) * unit
	}
}

// value returns the number in a line "NAME NUMBER", or, for no name, the number
// that is all of the text. It is 0 when there is none.
func value(text []byte, name string) int64 {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if name != "" {
			before, rest, _ := strings.Cut(line, " ")
			if before != name {
				continue
			}
			line = rest
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		return n
	}
	return 0
}

// someAvg10 reads "some avg10=0.12 avg60=…".
func someAvg10(text []byte) float64 {
	_, rest, _ := strings.Cut(string(text), "some avg10=")
	word, _, _ := strings.Cut(rest, " ")
	share, _ := strconv.ParseFloat(word, 64)
	return share
}
