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
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	jsonparser "github.com/knadh/koanf/parsers/json"
	tomlparser "github.com/knadh/koanf/parsers/toml/v2"
	yamlparser "github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/v2"
)

// MaxFileSize is the maximum size of a file, in bytes. A Kubernetes ConfigMap has the
// same limit.
const MaxFileSize = 1 << 20

// MaxKeys is the maximum number of keys in one section of a file. The parsers of YAML
// and TOML compare each key with every other one of its section.
const MaxKeys = 10_000

// format is a file format.
type format struct {
	name   string
	parser koanf.Parser
	scan   func([]byte) scanned
}

var (
	formatYAML = format{"YAML", yamlparser.Parser(), scanYAML}
	formatJSON = format{"JSON", &strictJSON{}, scanJSON}
	formatTOML = format{"TOML", tomlparser.Parser(), scanTOML}
)

// formatOf returns the format for the extension of the name.
func formatOf(name string) (format, error) {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".yaml", ".yml":
		return formatYAML, nil
	case ".json":
		return formatJSON, nil
	case ".toml":
		return formatTOML, nil
	case "":
		return format{}, errors.New("the name has no extension: want .yaml, .yml, .json or .toml")
	default:
		return format{}, fmt.Errorf("the extension %s is not known: want .yaml, .yml, .json or .toml", ext)
	}
}

// document is a file that was read.
type document struct {
	tree map[string]any
	scanned
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
	f, err := os.Open(name)
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

// parse turns the content of a file into a tree. The fault has no source yet.
func (f format) parse(content []byte) (document, *Fault) {
	content = bytes.TrimPrefix(content, []byte("\uFEFF"))
	if fault := checkText(content); fault != nil {
		return document{}, fault
	}
	if f.name == formatYAML.name {
		if line := secondDocument(content); line > 0 {
			return document{}, &Fault{Line: line, Problem: "a second document begins here: a configuration has one"}
		}
	}
	found := f.scan(content)
	if found.most > MaxKeys {
		return document{}, &Fault{Problem: fmt.Sprintf("a section has more than %d keys, the limit", MaxKeys)}
	}
	tree, err := f.parser.Unmarshal(content)
	if err != nil {
		return document{}, f.syntaxFault(content, err)
	}
	found.zeroed = slices.DeleteFunc(found.zeroed, func(z zeroed) bool { return !isNumber(tree, z.path) })
	return document{tree, found}, nil
}

// isNumber reports whether a tree has a number at that path. Keys may have dots.
func isNumber(tree any, path string) bool {
	if path == "" {
		_, ok := number(tree)
		return ok
	}
	if list, ok := tree.([]any); ok {
		index, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
		i, err := strconv.Atoi(index)
		return err == nil && i >= 0 && i < len(list) && isNumber(list[i], strings.TrimPrefix(rest, "."))
	}
	section, ok := asTree(tree)
	if !ok {
		return false
	}
	for i := len(path); i > 0; i = strings.LastIndexAny(path[:i], ".[") {
		if below, ok := section[path[:i]]; ok {
			return isNumber(below, strings.TrimPrefix(path[i:], "."))
		}
	}
	return false
}

// checkText refuses a file that is not text, and an empty file: a file looks like that
// while it is being written.
func checkText(content []byte) *Fault {
	if len(bytes.TrimSpace(content)) == 0 {
		return &Fault{Problem: "the file is empty: for all defaults write a comment, or {} in JSON"}
	}
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		if r == 0 || r == utf8.RuneError && size <= 1 {
			return &Fault{Line: lineAt(content, i), Problem: fmt.Sprintf("byte %d is %#02x: this is not UTF-8 text", i, content[i])}
		}
		i += size
	}
	return nil
}

// secondDocument returns the line at which another YAML document begins, or 0. A line
// that begins with --- begins a document, and one that begins with ... ends one (YAML
// 1.2, 9.1.2). The parser reads only the first document and would silently drop the
// others.
func secondDocument(content []byte) int {
	seen, ended, line := false, false, 0
	for text := range bytes.Lines(content) {
		line++
		trimmed := bytes.TrimSpace(text)
		marks := func(mark string) bool {
			return bytes.HasPrefix(text, []byte(mark)) && (len(trimmed) == 3 || text[3] == ' ' || text[3] == '\t')
		}
		switch {
		case marks("...") && seen:
			ended = true
		case marks("---") && seen:
			return line
		case marks("---"):
			seen = len(trimmed) > 3
		case len(trimmed) == 0 || trimmed[0] == '#' || text[0] == '%':
		case ended:
			return line
		default:
			seen = true
		}
	}
	return 0
}

var (
	yamlLine      = regexp.MustCompile(`line (\d+): `)
	yamlQuote     = regexp.MustCompile("`[^`]*`")
	yamlParser    = regexp.MustCompile(`did not find expected (node content|key|'-' indicator|',' or|<)`)
	yamlFirstLine = regexp.MustCompile(`^yaml: (did not find|could not find|found|mapping values|block) `)
)

// syntaxFault says where a parser failed. It leaves out the parser's quotes of the
// content, which may be secrets.
func (f format) syntaxFault(content []byte, err error) *Fault {
	fault := &Fault{Err: err}
	said := err.Error()
	var syntax *json.SyntaxError
	var positioned interface{ Position() (row, column int) }
	var inJSON *jsonError
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mistyped) && strings.HasPrefix(mistyped.Value, "number"):
		fault.Line = lineAt(content, int(mistyped.Offset)-1)
		fault.Problem, fault.Err = "a number is too large", nil // the error quotes the number
		return fault
	case errors.As(err, &mistyped):
		said = "into map[string]interface {}"
	case errors.As(err, &inJSON):
		fault.Line = lineAt(content, int(inJSON.offset))
	case errors.As(err, &syntax):
		fault.Line = lineAt(content, int(syntax.Offset)-1)
	case errors.As(err, &positioned):
		fault.Line, _ = positioned.Position()
	default:
		fault.Line = lineOfYAML(content, said)
		if strings.Contains(said, "invalid map key") {
			said = "a section stands in place of a key: in a template, put {{…}} in quotes or render it"
			fault.Err = nil // the error quotes the content
		}
		said = yamlLine.ReplaceAllString(said, "")
		said = strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimPrefix(said, "yaml: "), "unmarshal errors:")), " ")
	}
	if strings.Contains(said, "into map[string]interface {}") {
		fault.Problem = "the file is not " + f.name + " with keys and values"
		fault.Err = nil // the error quotes the content
		return fault
	}
	fault.Problem = "the file is not valid " + f.name + "; it may be truncated: " + strings.TrimPrefix(yamlQuote.ReplaceAllString(said, "…"), "toml: ")
	return fault
}

// lineOfYAML returns the line of an error of the YAML parser, 0 when it is not known. The
// parser counts the lines of its own errors from 0, those of its scanner from 1, and tells
// nothing in place of 0.
func lineOfYAML(content []byte, said string) (line int) {
	at := -1
	switch {
	case strings.Contains(said, "unknown anchor"):
		_, name, _ := strings.Cut(said, "'")
		name, _, _ = strings.Cut(name, "'")
		at = bytes.Index(content, []byte("*"+name))
	case strings.Contains(said, "control characters"):
		at = bytes.IndexFunc(content, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\r\n\u0085", r) })
	case strings.Contains(said, "invalid map key"):
		at = bytes.Index(content, []byte("{{"))
	default:
		m := yamlLine.FindStringSubmatch(said)
		switch {
		case m != nil:
			_, _ = fmt.Sscan(m[1], &line)
			if yamlParser.MatchString(said) {
				line = min(line+1, 1+bytes.Count(bytes.TrimRight(content, "\r\n"), []byte("\n")))
			}
		case yamlFirstLine.MatchString(said):
			line = 1
		}
	}
	if at >= 0 {
		line = lineAt(content, at)
	}
	return line
}

// lineAt returns the line of a byte, from 1.
func lineAt(content []byte, offset int) int {
	return 1 + bytes.Count(content[:max(0, min(offset, len(content)))], []byte("\n"))
}

// strictJSON is koanf's parser with what encoding/json lacks: it refuses a key that occurs
// twice in a section, and keeps all digits of a whole number.
type strictJSON struct{ jsonparser.JSON }

func (p *strictJSON) Unmarshal(content []byte) (map[string]any, error) {
	tree, err := p.JSON.Unmarshal(content)
	if err != nil {
		return nil, err
	}
	var twice error
	walkJSON(content, func(path string, offset int64, count int) {
		if count == 0 && twice == nil {
			twice = &jsonError{offset, fmt.Sprintf("the key %q occurs twice", path)}
		}
	})
	if twice != nil {
		return nil, twice
	}
	exact := json.NewDecoder(bytes.NewReader(content))
	exact.UseNumber()
	tree = nil
	if err := exact.Decode(&tree); err != nil {
		return nil, err
	}
	plainNumbers(tree)
	return tree, nil
}

// plainNumbers replaces the numbers in a tree, which are texts, and returns it.
func plainNumbers(tree any) any {
	switch t := tree.(type) {
	case json.Number:
		return plainNumber(t)
	case map[string]any:
		for key, value := range t {
			t[key] = plainNumbers(value)
		}
	case []any:
		for i, value := range t {
			t[i] = plainNumbers(value)
		}
	}
	return tree
}

// plainNumber returns a number as a whole one, with all its digits, or as a float. A text
// that is not a number stays one.
func plainNumber(n json.Number) any {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return u
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return string(n)
}

// jsonError is an error at one place of a JSON document.
type jsonError struct {
	offset int64
	said   string
}

func (e *jsonError) Error() string { return e.said }
