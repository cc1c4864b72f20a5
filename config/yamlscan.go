package config

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// yamlScan reads a YAML text again for what the parser does not tell: the lines of
// keys and items, the largest section, and numbers with a leading zero. A text that it
// does not understand costs lines in messages, and nothing else.
type yamlScan struct {
	text   []byte
	at     int // the next byte
	line   int // its line, from 1
	deep   int // of flow sections
	found  scanned
	levels []yamlLevel
}

// scanned is what a scan of a file has found.
type scanned struct {
	lines  map[string]int // of each key and item, by path
	most   int            // the keys of the largest section
	zeroed []zeroed
}

// zeroed is a number with a leading zero.
type zeroed struct {
	path, text string
	line       int
}

// yamlLevel is a block section or a block list around the current line.
type yamlLevel struct {
	indent int
	list   bool
	path   string // of the section or list itself
	key    string // the path of its current key or item
	count  int
}

// maxDeep is how deep flow sections are followed.
const maxDeep = 100

var (
	leadingZero = regexp.MustCompile(`^[-+]?0[0-9_]+$`)
	yamlKey     = regexp.MustCompile(`^(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\n]|'')*)'|([^\s#'"\[\]{},&*!|>%@?:-][^\n]*?|[-?:][^\s\n][^\n]*?)) *:(?:[ \t\r\n]|$)`)
	yamlComment = regexp.MustCompile(`\s#`)
)

func scanYAML(text []byte) scanned {
	s := &yamlScan{text: text, line: 1, found: scanned{lines: map[string]int{}}}
	for s.at < len(s.text) && s.found.most <= MaxKeys {
		s.blockLine()
	}
	return s.found
}

// rest is the rest of the current line, without its end.
func (s *yamlScan) rest() []byte {
	line := s.text[s.at:]
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	return bytes.TrimSuffix(line, []byte("\r"))
}

// nextLine goes to the beginning of the next line.
func (s *yamlScan) nextLine() {
	if i := bytes.IndexByte(s.text[s.at:], '\n'); i >= 0 {
		s.at += i + 1
		s.line++
		return
	}
	s.at = len(s.text)
}

// spaces skips spaces and tabs, and returns how many.
func (s *yamlScan) spaces() int {
	n := len(s.text[s.at:]) - len(bytes.TrimLeft(s.text[s.at:], " \t"))
	s.at += n
	return n
}

// blockLine reads a line of block style with the values that begin in it.
func (s *yamlScan) blockLine() {
	if bytes.HasPrefix(s.rest(), []byte("---")) {
		s.at += 3
	}
	column := s.spaces()
	for {
		line := s.rest()
		if len(line) == 0 || line[0] == '#' || line[0] == '%' && column == 0 {
			s.nextLine()
			return
		}
		mark := line[0]
		if (mark != '-' && mark != '?') || len(line) > 1 && line[1] != ' ' && line[1] != '\t' {
			break
		}
		// An item of a list, or a key that has a line of its own.
		level := s.level(column, mark == '-')
		if level.count++; mark == '-' {
			level.key = level.path + "[" + strconv.Itoa(level.count-1) + "]"
			s.place(level.key)
		} else {
			s.found.most = max(s.found.most, level.count)
			level.key = join(level.path, "?")
		}
		s.at++
		column += 1 + s.spaces()
	}
	s.properties()
	line := s.rest()
	if m := yamlKey.FindSubmatch(line); m != nil && !bytes.Contains(m[3], []byte(" #")) {
		level := s.level(column, false)
		level.count++
		s.found.most = max(s.found.most, level.count)
		level.key = join(level.path, string(m[1])+strings.ReplaceAll(string(m[2]), "''", "'")+string(m[3]))
		s.place(level.key)
		s.at += bytes.LastIndexByte(m[0], ':') + 1
	} else if len(line) > 0 && line[0] == ':' {
		s.at++ // the value of a key that has a line of its own
	}
	path := ""
	if n := len(s.levels); n > 0 {
		path = s.levels[n-1].key
	}
	s.blockValue(path)
}

// level returns the section or list of that indentation, after it has left those that
// have ended.
func (s *yamlScan) level(column int, list bool) *yamlLevel {
	for n := len(s.levels); n > 0; n-- {
		top := &s.levels[n-1]
		if top.indent < column || top.indent == column && !top.list && list {
			break // the items of a list may stand below the first letter of its key
		}
		if top.indent == column && top.list == list {
			return top
		}
		s.levels = s.levels[:n-1]
	}
	path := ""
	if n := len(s.levels); n > 0 {
		path = s.levels[n-1].key
	}
	s.levels = append(s.levels, yamlLevel{indent: column, list: list, path: path, key: path})
	return &s.levels[len(s.levels)-1]
}

// place notes the line of a key or an item.
func (s *yamlScan) place(path string) {
	if s.found.lines[path] == 0 {
		s.found.lines[path] = s.line
	}
}

// blockValue reads the rest of a line, which is a value or its beginning, and the lines
// that belong to a text.
func (s *yamlScan) blockValue(path string) {
	s.properties()
	line := s.rest()
	if len(line) == 0 {
		s.nextLine()
		return
	}
	switch line[0] {
	case '#', '*':
		s.nextLine()
	case '{', '[':
		s.flow(path)
		s.nextLine()
	case '"', '\'':
		s.quoted()
		s.nextLine()
	case '|', '>':
		s.nextLine()
		s.deeperLines()
	default:
		if i := yamlComment.FindIndex(line); i != nil {
			line = line[:i[0]]
		}
		s.plain(path, line)
		s.nextLine()
		s.deeperLines()
	}
}

// deeperLines skips lines that are empty or deeper than the current section: they
// belong to the text that has begun.
func (s *yamlScan) deeperLines() {
	indent := -1
	if n := len(s.levels); n > 0 {
		indent = s.levels[n-1].indent
	}
	for s.at < len(s.text) {
		line := s.rest()
		text := bytes.TrimLeft(line, " ")
		if len(text) > 0 && len(line)-len(text) <= indent || indent < 0 && bytes.HasPrefix(line, []byte("---")) {
			return
		}
		s.nextLine()
	}
}

// properties skips anchors and tags before a value.
func (s *yamlScan) properties() {
	for s.spaces(); s.at < len(s.text) && (s.text[s.at] == '&' || s.text[s.at] == '!'); s.spaces() {
		n := bytes.IndexAny(s.text[s.at:], " \t\r\n")
		if n < 0 {
			n = len(s.text) - s.at
		}
		s.at += n
	}
}

// plain notes a number with a leading zero.
func (s *yamlScan) plain(path string, value []byte) {
	value = bytes.TrimSpace(value)
	if leadingZero.Match(value) {
		s.found.zeroed = append(s.found.zeroed, zeroed{path: path, text: string(value), line: s.line})
	}
}

// quoted skips a text in quotes, which may have several lines, and returns it as it is
// written.
func (s *yamlScan) quoted() string {
	quote, begin := s.text[s.at], s.at+1
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\n':
			s.line++
		case c == '\\' && quote == '"':
			s.at++
		case c == quote && quote == '\'' && s.at+1 < len(s.text) && s.text[s.at+1] == quote:
			s.at++
		case c == quote:
			s.at++
			return strings.ReplaceAll(string(s.text[begin:s.at-1]), "''", "'")
		}
	}
	s.at = len(s.text) // a backslash was the last byte
	return ""
}

// blanks skips white space, comments and the ends of lines inside a flow section.
func (s *yamlScan) blanks() {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r':
			s.at++
		case '\n':
			s.nextLine()
		case '#':
			s.at += len(s.rest())
		default:
			return
		}
	}
}

// flow reads a section {…} or a list […].
func (s *yamlScan) flow(path string) {
	list := s.text[s.at] == '['
	s.at++
	if s.deep++; s.deep > maxDeep {
		s.at = len(s.text)
	}
	count, key := 0, ""
	for {
		s.blanks()
		if s.at >= len(s.text) {
			return
		}
		switch s.text[s.at] {
		case '}', ']':
			s.at++
			s.deep--
			return
		case ',':
			s.at++
			key = ""
			continue
		case ':':
			s.at++
			s.properties()
			s.blanks()
			if s.at < len(s.text) && strings.IndexByte(",}]", s.text[s.at]) < 0 {
				s.flowValue(key)
			}
			continue
		}
		if key != "" {
			s.flowValue(key) // the next line of a plain text
			continue
		}
		count++
		if list {
			key = path + "[" + strconv.Itoa(count-1) + "]"
			s.place(key)
			s.properties()
			s.flowValue(key)
			continue
		}
		s.found.most = max(s.found.most, count)
		s.properties()
		line := s.line
		key = join(path, s.flowValue(""))
		if s.found.lines[key] == 0 {
			s.found.lines[key] = line
		}
	}
}

// flowValue reads a value inside a flow section and returns the text of a scalar.
func (s *yamlScan) flowValue(path string) string {
	if s.at >= len(s.text) {
		return ""
	}
	switch s.text[s.at] {
	case '{', '[':
		s.flow(path)
		return ""
	case '"', '\'':
		return s.quoted()
	}
	rest, n := s.text[s.at:], 0
	for ; n < len(rest); n++ {
		c := rest[n]
		if strings.IndexByte(",[]{}\n", c) >= 0 || c == '#' && n > 0 && rest[n-1] == ' ' ||
			c == ':' && (n+1 == len(rest) || strings.IndexByte(" \t\r\n,[]{}", rest[n+1]) >= 0) {
			break
		}
	}
	s.at += n
	if path != "" {
		s.plain(path, rest[:n])
	}
	return string(bytes.TrimSpace(rest[:n]))
}
