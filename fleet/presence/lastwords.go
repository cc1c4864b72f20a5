package presence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/filelock"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// life is the first line of a file of last words: the process that writes it.
type life struct {
	Service   string    `json:"service"`
	Process   string    `json:"process"` // the id
	Version   string    `json:"version,omitempty"`
	Host      string    `json:"host,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	Boot      string    `json:"boot,omitempty"` // of the host
}

// words is the open file of last words of this process.
type words struct{ file *os.File }

// maxWords is how much of a file of last words is read, in bytes.
const maxWords = 64 << 10

// openWords takes the file for this process until close is called or the process ends. It
// returns the end of the previous life, nil when that life has reported its end itself.
func openWords(name string, me life) (w *words, before *Event, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := filelock.Take(f); err != nil {
		return nil, nil, err
	}
	me.Boot = bootID()
	old, err := io.ReadAll(io.LimitReader(f, maxWords))
	if err != nil {
		return nil, nil, err
	}
	at := time.Now()
	if info, err := f.Stat(); err == nil {
		at = info.ModTime()
	}
	return &words{f}, readWords(string(old), at, me), nil
}

// begin empties the file, writes to which life it belongs, and makes the runtime write a
// crash of this process to it.
func (w *words) begin(me life) error {
	me.Boot = bootID()
	head, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if err := w.file.Truncate(0); err != nil {
		return err
	}
	if _, err := w.file.WriteAt(append(head, '\n'), 0); err != nil {
		return err
	}
	if _, err := w.file.Seek(0, io.SeekEnd); err != nil { // the runtime writes behind the head
		return err
	}
	return debug.SetCrashOutput(w.file, debug.CrashOptions{})
}

// close empties the file, because the process has reported its end itself. A panic after close
// is not recorded.
func (w *words) close() {
	if w == nil {
		return
	}
	_ = debug.SetCrashOutput(nil, debug.CrashOptions{})
	_ = w.file.Truncate(0)
	_ = w.file.Close()
}

// readWords returns the end of the life that has written a file of last words. It returns nil
// when that life has reported its end itself, or belonged to another service. at is when the
// file was last written.
func readWords(content string, at time.Time, me life) *Event {
	head, crash, _ := strings.Cut(content, "\n")
	var l life
	if json.Unmarshal([]byte(head), &l) != nil || l.Process == "" || l.Service != me.Service {
		return nil
	}
	e := &Event{
		Kind:    "lost",
		Service: l.Service,
		Process: l.Process,
		Version: l.Version,
		Host:    l.Host,
		once:    once("lost", l.Process, l.StartedAt),
	}
	e.To, e.Cause = classify(crash)
	switch {
	case crash != "": // the runtime wrote it in the moment of the end
		e.Waited = max(0, time.Since(at))
	case l.Boot != "" && me.Boot != "" && l.Boot != me.Boot:
		e.To, e.Cause = EndLost, "its host was started anew"
	}
	if e.To == EndPanicked {
		e.ExitStatus = panicStatus
	}
	return e
}

// classify says how a process ended, from the text that the Go runtime wrote at its end.
func classify(crash string) (class, cause string) {
	class, cause = EndKilled, "it did not panic: a signal such as SIGKILL ended it, or the program called os.Exit"
	for line := range strings.Lines(crash) {
		line = strings.TrimSpace(line)
		outOfMemory := strings.Contains(line, "out of memory") || strings.Contains(line, "cannot allocate memory")
		switch {
		case strings.HasPrefix(line, "fatal error: ") && outOfMemory:
			return EndOOM, line
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
			return EndPanicked, text.Clip(line, maxReason) + frame(crash)
		case strings.HasPrefix(line, "SIG"): // such as "SIGQUIT: quit"
			return EndKilled, text.Clip(line, maxReason)
		case line != "":
			class, cause = EndPanicked, text.Clip(line, maxReason)
		}
	}
	return class, cause
}

// frame returns the first function of the program in a crash, and its place: " in
// main.poll (poll.go:12)"; "" when there is none.
func frame(crash string) string {
	_, stack, _ := strings.Cut(crash, "\ngoroutine ")
	_, stack, _ = strings.Cut(stack, "\n")
	for {
		function, rest, ok := strings.Cut(stack, "\n")
		place, rest, _ := strings.Cut(rest, "\n")
		if !ok || function == "" || !strings.HasPrefix(place, "\t") {
			return ""
		}
		stack = rest
		if strings.HasPrefix(function, "panic(") || strings.HasPrefix(function, "runtime.") {
			continue
		}
		if i := strings.LastIndex(function, "("); i > 0 {
			function = function[:i]
		}
		place, _, _ = strings.Cut(strings.TrimSpace(place), " +0x")
		return fmt.Sprintf(" in %s (%s)", function, place[strings.LastIndexByte(place, '/')+1:])
	}
}

// bootID names the run of this host's kernel, "" when it is not known.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// openLastWords opens the file of last words, and writes into the journal how the previous life
// ended. It returns the text about that life for the event "joined", "" for none. It returns nil
// words when no file is configured, or it cannot be used.
func (a *announcer) openLastWords() (w *words, previousEnd string) {
	if a.cfg.LastWords == "" {
		return nil, ""
	}
	me := life{Service: a.app.Config().Name, Process: a.cfg.ID, Version: a.cfg.Version, Host: a.host, StartedAt: a.started}
	w, before, err := openWords(a.cfg.LastWords, me)
	if before != nil {
		a.cfg.Logger.Warn("presence: the life before did not report its end",
			"process", before.Process, "class", before.To, "cause", before.Cause)
		did := map[string]string{EndPanicked: "panicked", EndOOM: "ran out of memory"}[before.To]
		previousEnd = "the life before " + cmp.Or(did, "was ended") + ": " + before.Cause
		a.journal.add(*before)
	}
	if err == nil {
		err = w.begin(me)
	}
	if err != nil {
		a.cfg.Logger.Warn("presence: there will be no last words of this process", "file", a.cfg.LastWords, "error", err)
	}
	return w, previousEnd
}
