package worker

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// procStat holds the fields of /proc/PID/stat, proc(5), that this package needs.
type procStat struct {
	ppid, pgrp int
	state      byte
}

// allPIDs returns the number of every process.
func allPIDs() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(string(text))
}

// parseStat reads "1 (name) S 0 1 …". The name may contain any character,
// including parentheses.
func parseStat(text string) (s procStat, ok bool) {
	var state string
	n, _ := fmt.Sscan(text[strings.LastIndexByte(text, ')')+1:], &state, &s.ppid, &s.pgrp)
	if n < 3 || len(state) != 1 {
		return s, false
	}
	s.state = state[0]
	return s, true
}
