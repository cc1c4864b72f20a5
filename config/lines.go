package config

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// Parsers return values without their places. The functions below find the lines of
// keys again, for messages. A key that they do not find has no line there.

// walkJSON calls found with the path of each key in a JSON document, and with whether
// its section already had that key.
func walkJSON(content []byte, found func(path string, offset int64, again bool)) {
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.UseNumber()
	var value func(path string)
	value = func(path string) {
		token, err := dec.Token()
		if err != nil {
			return
		}
		switch token {
		case json.Delim('{'):
			seen := map[string]bool{}
			for dec.More() {
				name, err := dec.Token()
				if err != nil {
					return
				}
				key, _ := name.(string)
				below := join(path, key)
				found(below, dec.InputOffset()-1, seen[key])
				seen[key] = true
				value(below)
			}
			_, _ = dec.Token()
		case json.Delim('['):
			for i := 0; dec.More(); i++ {
				value(path + "[" + strconv.Itoa(i) + "]")
			}
			_, _ = dec.Token()
		}
	}
	value("")
}

func jsonLines(content []byte) map[string]int {
	lines := map[string]int{}
	line, counted := 1, int64(0)
	walkJSON(content, func(path string, offset int64, _ bool) {
		line += bytes.Count(content[counted:offset], []byte("\n"))
		counted = offset
		lines[path] = line
	})
	return lines
}

var yamlKey = regexp.MustCompile(`^( *)(?:"([^"\\]+)"|'([^']+)'|([^\s#'"\[\]{},&*!|>%@-][^\s:#]*)) *:(?:\s|$)`)

// yamlLines finds the keys of block-style sections, by indentation.
func yamlLines(content []byte) map[string]int {
	type level struct {
		indent int
		path   string
	}
	lines := map[string]int{}
	var above []level
	line := 0
	for text := range bytes.Lines(content) {
		line++
		m := yamlKey.FindSubmatch(text)
		if m == nil {
			continue
		}
		for len(above) > 0 && above[len(above)-1].indent >= len(m[1]) {
			above = above[:len(above)-1]
		}
		path := string(m[2]) + string(m[3]) + string(m[4])
		if len(above) > 0 {
			path = join(above[len(above)-1].path, path)
		}
		above = append(above, level{len(m[1]), path})
		if lines[path] == 0 {
			lines[path] = line
		}
	}
	return lines
}

var (
	tomlHeader = regexp.MustCompile(`^\s*\[\s*([^\[\]]+?)\s*\]`)
	tomlKey    = regexp.MustCompile(`^\s*([A-Za-z0-9_."' -]+?)\s*=`)
)

// tomlLines finds the keys at the beginning of a line.
func tomlLines(content []byte) map[string]int {
	lines := map[string]int{}
	line, section := 0, ""
	bare := strings.NewReplacer(`"`, "", `'`, "", " ", "")
	for text := range bytes.Lines(content) {
		line++
		path := ""
		if m := tomlHeader.FindSubmatch(text); m != nil {
			section = bare.Replace(string(m[1]))
			path = section
		} else if m := tomlKey.FindSubmatch(text); m != nil {
			path = join(section, bare.Replace(string(m[1])))
		}
		if path != "" && lines[path] == 0 {
			lines[path] = line
		}
	}
	return lines
}
