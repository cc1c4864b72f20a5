package worker

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// procStat holds the fields of /proc/PID/stat, proc(5), that this package needs.
type procStat struct {
	pid, ppid, pgrp int
	state           byte
}

// eachPID calls visit with the number of every process until visit returns false.
// Processes may come and go meanwhile.
func eachPID(visit func(pid int) bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !visit(pid) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(text)
}

// parseStat reads "1 (name) S 0 1 …". The name may contain any character,
// including parentheses.
func parseStat(text []byte) (s procStat, ok bool) {
	pid, rest, _ := bytes.Cut(text, []byte(" ("))
	end := bytes.LastIndexByte(rest, ')')
	if end < 0 {
		return s, false
	}
	fields := strings.Fields(string(rest[end+1:]))
	if len(fields) < 3 || len(fields[0]) != 1 {
		return s, false
	}
	s.state = fields[0][0]
	for _, field := range []struct {
		to   *int
		text string
	}{{&s.pid, string(pid)}, {&s.ppid, fields[1]}, {&s.pgrp, fields[2]}} {
		n, err := strconv.Atoi(field.text)
		if err != nil {
			return s, false
		}
		*field.to = n
	}
	return s, true
}
