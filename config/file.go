package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	tomlparser "github.com/knadh/koanf/parsers/toml/v2"

	"github.com/pleme-io/lifecycle-go/internal/configjson"
)

// MaxFileSize is the maximum size of a file, in bytes. A Kubernetes ConfigMap has the
// same limit.
const MaxFileSize = 1 << 20

// document is a file that was read.
type document struct {
	tree  map[string]any
	lines map[string]int // of keys and items, by path; a parser may not know all of them
}

// lineOf returns the line of a key, or of the nearest section or list around it.
func (d document) lineOf(key string) int {
	for key != "" {
		if line := d.lines[key]; line > 0 {
			return line
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return 0
}

// readFile reads a whole regular file. It never blocks: it refuses a pipe, for
// example, before opening it.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return nil, errors.New("it is a directory: want a file in it")
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("it is not a regular file (%v)", info.Mode().Type())
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have taken its place
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(content) > MaxFileSize {
		return nil, fmt.Errorf("it has more than %d bytes, the limit", MaxFileSize)
	}
	return content, nil
}

// parserOf returns the parser for the extension of the name. Its fault has no source yet.
func parserOf(name string) (func(content []byte) (document, *Fault), error) {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".yaml", ".yml":
		return parseYAML, nil
	case ".json":
		return parseJSON, nil
	case ".toml":
		return parseTOML, nil
	case "":
		return nil, errors.New("the name has no extension: want .yaml, .yml, .json or .toml")
	default:
		return nil, fmt.Errorf("the extension %s is not known: want .yaml, .yml, .json or .toml", ext)
	}
}

// checkText refuses a file that is not text, and an empty file: a file looks like that
// while it is being written.
func checkText(content []byte) *Fault {
	if len(bytes.TrimSpace(content)) == 0 {
		return &Fault{Problem: "the file is empty: for all defaults write a comment, or {} in JSON"}
	}
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		isBroken := r == utf8.RuneError && size <= 1
		if isBroken || unicode.IsControl(r) && !strings.ContainsRune("\t\r\n\u0085", r) {
			problem := fmt.Sprintf("byte %d is %#02x: want UTF-8 text without control characters", i, content[i])
			return &Fault{Line: lineAt(content, i), Problem: problem}
		}
		i += size
	}
	return nil
}

func lineAt(content []byte, offset int) int {
	return 1 + bytes.Count(content[:max(0, min(offset, len(content)))], []byte("\n"))
}

func notSections(line int, format string) *Fault {
	return &Fault{Line: line, Problem: "the file is not " + format + " with keys and values"}
}

func parseJSON(content []byte) (document, *Fault) {
	doc := document{lines: map[string]int{}}
	line, counted := 1, 0
	tree, err := configjson.Parse(content, func(key string, end int64) {
		line += bytes.Count(content[counted:end], []byte("\n"))
		counted = int(end)
		doc.lines[key] = line
	})
	var twice *configjson.Error
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &twice):
		return document{}, &Fault{Line: lineAt(content, int(twice.Offset)), Problem: err.Error()}
	case errors.As(err, &syntax):
		problem := "the file is not valid JSON; it may be truncated: " + err.Error()
		return document{}, &Fault{Line: lineAt(content, int(syntax.Offset)-1), Problem: problem, Err: err}
	case err != nil:
		return document{}, &Fault{Problem: err.Error(), Err: err}
	}
	var ok bool
	if doc.tree, ok = tree.(map[string]any); !ok {
		return document{}, notSections(1, "JSON")
	}
	return doc, nil
}

var (
	tomlHeader = regexp.MustCompile(`^\s*\[\s*([^\[\]]+?)\s*\]`)
	tomlKey    = regexp.MustCompile(`^\s*([A-Za-z0-9_."' -]+?)\s*=`)
)

// parseTOML reads TOML. The parser returns values without their places. So the lines are known
// for keys at the beginning of a line.
func parseTOML(content []byte) (document, *Fault) {
	doc := document{lines: map[string]int{}}
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
		if path != "" && doc.lines[path] == 0 {
			doc.lines[path] = line
		}
	}
	var err error
	if doc.tree, err = tomlparser.Parser().Unmarshal(content); err != nil {
		fault := &Fault{Problem: "the file is not valid TOML; it may be truncated: " + strings.TrimPrefix(err.Error(), "toml: "), Err: err}
		var at interface{ Position() (row, column int) }
		if errors.As(err, &at) {
			fault.Line, _ = at.Position()
		}
		return document{}, fault
	}
	return doc, nil
}
