package presence

import (
	"bytes"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process uses besides memory. A number that is not known is 0.
type Usage struct {
	Goroutines      int `json:"goroutines,omitempty"`
	Threads         int `json:"threads,omitempty"`
	Descriptors     int `json:"descriptors,omitempty"` // open files and connections
	DescriptorLimit int `json:"descriptorLimit,omitempty"`
	// Throttled is the share of the last minute, in percent, in which the processor time of
	// the container was used up and the process had to wait.
	Throttled int `json:"throttled,omitempty"`
	// GoroutineGrowth and MemoryGrowth are set while the number has only grown.
	GoroutineGrowth *Growth `json:"goroutineGrowth,omitempty"`
	MemoryGrowth    *Growth `json:"memoryGrowth,omitempty"`
	// Busy is set while the process uses a processor without a pause.
	Busy *Busy `json:"busy,omitempty"`
}

// Busy says how much processor time a process uses that uses at least most of one processor.
type Busy struct {
	Since   time.Time `json:"since"`   // since when it has never used less than 95 percent of one
	Percent int       `json:"percent"` // of one processor: two that are used wholly are 200
	Most    int       `json:"most"`    // what the Go program may use, in the same percent: GOMAXPROCS
}

// Growth says since when a number has only grown, and from which value.
type Growth struct {
	Since time.Time `json:"since"`
	From  int64     `json:"from"`
}

// Times of the looks at a process's own usage. The values of the system cost system calls, so an
// idle process asks for them once a minute.
const (
	usageEvery  = time.Minute
	growthEvery = 15 * time.Second // between two samples of a growth
	growthLeast = time.Minute      // a growth that has lasted shorter is not told
	busyEvery   = 15 * time.Second // the least time over which the use of processors is measured
	busyPercent = 95               // of one processor
)

// usageMeter measures the usage of this process.
type usageMeter struct {
	at                 time.Time // of last
	last               Usage
	periods, throttled int64
	goroutines, memory growthMeter
	processor          busyMeter
}

// look returns the usage now. memory is what the process uses, in bytes, and limit the file with the
// limit of its container, "" for none.
func (m *usageMeter) look(now time.Time, memory int64, limit string) Usage {
	if m.at.IsZero() || now.Sub(m.at) >= usageEvery {
		m.at = now
		m.last = m.ask(limit)
	}
	u := m.last
	u.Goroutines = runtime.NumGoroutine()
	u.GoroutineGrowth = m.goroutines.look(now, int64(u.Goroutines))
	u.MemoryGrowth = m.memory.look(now, memory)
	u.Busy = m.processor.look(now, processorTime)
	return u
}

// ask asks the system, where it tells: Linux does.
func (m *usageMeter) ask(limit string) (u Usage) {
	u.Threads = threads()
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := dir.Readdirnames(-1)
		u.Descriptors = max(0, len(names)-1) // without the one of this look
		_ = dir.Close()
	}
	if limits, err := os.ReadFile("/proc/self/limits"); err == nil {
		u.DescriptorLimit = int(field(limits, "Max open files"))
	}
	periods, throttled := throttling(limit)
	if all := periods - m.periods; m.periods > 0 && all > 0 {
		u.Throttled = int(min(100, max(0, (throttled-m.throttled)*100/all)))
	}
	m.periods, m.throttled = periods, throttled
	return u
}

// threads returns how many threads this process has. /proc/self/status has the number too, and takes
// twice as long.
func threads() int {
	text, err := os.ReadFile("/proc/self/stat")
	rest := string(text[bytes.LastIndexByte(text, ')')+1:]) // proc_pid_stat(5): the name ends there
	if words := strings.Fields(rest); err == nil && len(words) > 17 {
		n, _ := strconv.Atoi(words[17])
		return n
	}
	return 0
}

// throttling returns in how many periods the container used processor time, and in how many it had
// to wait for it. It is zero without a limit.
func throttling(limit string) (periods, throttled int64) {
	if limit == "" {
		return 0, 0
	}
	dir := path.Dir("/" + strings.TrimPrefix(limit, "/"))
	for _, name := range []string{path.Join(dir, "cpu.stat"), strings.Replace(path.Join(dir, "cpu.stat"), "/memory/", "/cpu/", 1)} {
		if text, err := os.ReadFile(name); err == nil {
			return field(text, "nr_periods"), field(text, "nr_throttled")
		}
	}
	return 0, 0
}

// field returns the first number behind a name that begins a line, 0 when there is none.
func field(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			for _, word := range bytes.Fields(rest) {
				n, _ := strconv.ParseInt(string(word), 10, 64)
				return n
			}
		}
	}
	return 0
}

// growthMeter notes since when a number has only grown, apart from a fiftieth.
type growthMeter struct {
	from, last int64
	since, at  time.Time
}

// look notes a value, and returns the growth while it lasts.
func (g *growthMeter) look(now time.Time, value int64) *Growth {
	switch {
	case g.at.IsZero() || value < g.last-g.last/50:
		*g = growthMeter{from: value, last: value, since: now, at: now}
	case now.Sub(g.at) >= growthEvery:
		if value <= g.last {
			g.from, g.since = value, now
		}
		g.last, g.at = value, now
	}
	if g.at.Sub(g.since) < growthLeast || g.last <= g.from {
		return nil
	}
	return &Growth{Since: g.since.UTC(), From: g.from}
}

// busyMeter notes since when a process uses most of a processor without a pause.
type busyMeter struct {
	at      time.Time     // of the last look
	used    time.Duration // the processor time at that moment
	since   time.Time
	percent int
}

// look asks for the processor time when it is time to, and returns the use while it has lasted for
// as long as a growth must.
func (m *busyMeter) look(now time.Time, ask func() time.Duration) *Busy {
	if took := now.Sub(m.at); took >= busyEvery {
		used := ask()
		percent := int(100 * (used - m.used) / took)
		switch {
		case m.at.IsZero() || percent < busyPercent:
			m.since = time.Time{}
		case m.since.IsZero():
			m.since = m.at
		}
		m.at, m.used, m.percent = now, used, percent
	}
	if m.since.IsZero() || m.at.Sub(m.since) < growthLeast {
		return nil
	}
	return &Busy{Since: m.since.UTC(), Percent: m.percent, Most: 100 * runtime.GOMAXPROCS(0)}
}
