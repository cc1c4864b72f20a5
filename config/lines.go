package config

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// Parsers return values without their places. The functions here and in yamlscan.go
// find the lines of keys again, for messages. A key that they do not find has no line
// there.

// lineOf returns the line of a key, or of the nearest section or list around it.
func (s scanned) lineOf(key string) int {
	for {
		if line := s.lines[key]; line > 0 {
			return line
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return 0
		}
		key = key[:i]
	}
}

// walkJSON calls found with the path of each key in a JSON document, and with how many
// keys its section has so far, 0 when it already had that key.
func walkJSON(content []byte, found func(path string, offset int64, count int)) {
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.UseNumber()
	var value func(path string, depth int) bool
	value = func(path string, depth int) bool {
		token, err := dec.Token()
		if err != nil || depth > maxDepth {
			return false // the parser says what is wrong
		}
		switch token {
		case json.Delim('{'):
			seen := map[string]bool{}
			for dec.More() {
				name, err := dec.Token()
				if err != nil {
					return false
				}
				key, _ := name.(string)
				below := join(path, key)
				if !seen[key] {
					seen[key] = true
					found(below, dec.InputOffset()-1, len(seen))
				} else {
					found(below, dec.InputOffset()-1, 0)
				}
				if !value(below, depth+1) {
					return false
				}
			}
			_, err = dec.Token()
		case json.Delim('['):
			for i := 0; dec.More(); i++ {
				if !value(path+"["+strconv.Itoa(i)+"]", depth+1) {
					return false
				}
			}
			_, err = dec.Token()
		}
		return err == nil
	}
	value("", 0)
}

// maxDepth is the depth that encoding/json allows.
const maxDepth = 10_000

func scanJSON(content []byte) scanned {
	found := scanned{lines: map[string]int{}}
	line, counted := 1, int64(0)
	walkJSON(content, func(path string, offset int64, count int) {
		line += bytes.Count(content[counted:offset], []byte("\n"))
		counted = offset
		found.lines[path] = line
		found.most = max(found.most, count)
	})
	return found
}

var (
	tomlHeader = regexp.MustCompile(`^\s*\[\s*([^\[\]]+?)\s*\]`)
	tomlKey    = regexp.MustCompile(`^\s*([A-Za-z0-9_."' -]+?)\s*=`)
)

// scanTOML finds the keys at the beginning of a line. It counts a section's keys by the
// signs =, and so counts at least all of them.
func scanTOML(content []byte) scanned {
	found := scanned{lines: map[string]int{}}
	line, section, headers, keys := 0, "", 0, 0
	bare := strings.NewReplacer(`"`, "", `'`, "", " ", "")
	for text := range bytes.Lines(content) {
		line++
		path := ""
		if m := tomlHeader.FindSubmatch(text); m != nil {
			section = bare.Replace(string(m[1]))
			path = section
			headers++
			keys = 0
		} else if m := tomlKey.FindSubmatch(text); m != nil {
			path = join(section, bare.Replace(string(m[1])))
		}
		keys += bytes.Count(text, []byte("="))
		found.most = max(found.most, headers, keys)
		if path != "" && found.lines[path] == 0 {
			found.lines[path] = line
		}
	}
	return found
}
