// Package redact removes what looks like a secret from texts: from the answers of a process
// (package presence) and from the files of "lifecyclectl bundle". It finds secrets by their
// form, such as a private key in PEM, and by the names before them, such as "password=".
// It works with patterns, so it can miss a secret, and remove a text that is not one.
//
// Begin with [Text]. [JSON] also goes by the names of its fields, and [Named] says which
// names these are.
package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// secretNames are words in the name of a secret.
const secretNames = `(?:password|passwd|passphrase|secret|token|credential|session[_-]?id|amz-signature|` +
	`(?:api|access|private|encryption|signing|hmac)[_-]?key|` +
	`(?:\b|_)(?:pass|pwd|sig)\b)`

// secretKey matches the name of a secret.
var secretKey = regexp.MustCompile(`(?i)` + secretNames)

// assigned matches a name of a secret in a text, and what is between it and its value.
const assigned = `(?i)([A-Za-z0-9_.-]*` + secretNames + `[A-Za-z0-9_-]*["'\\]*\s*[=:]\s*)`

// Parts of the patterns of secrets.
const (
	keyBegins = `-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`
	keyEnds   = `-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`

	header       = `\b((?:set-)?cookie|(?:proxy-)?authorization)(["'\\]*\s*[=:]\s*)`
	headerScheme = `((?:(?:bearer|basic|digest|negotiate|ntlm|token|apikey)[ \t]+)?)`
	headerValue  = `(?:\[[^\]\n]*\]|"(?:[^"\\\n]|\\.)*"|[^\n]+)`

	option      = `--[a-z0-9-]*` + secretNames + `[a-z0-9-]*[ \t]+`
	optionValue = `(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[-][^\s"']*)`

	urlScheme   = `[A-Za-z][A-Za-z0-9+.-]*://`
	urlPassword = `(?:[^\s/"'\\]*|[0-9]*[^\s/0-9"'\\][^\s"'\\]*)` // digits before a slash are a port, not a password
)

// secrets are the patterns of secrets in a text, and what replaces each.
var secrets = []struct {
	pattern *regexp.Regexp
	with    string
	has     string // a text without it has no such secret
	named   bool   // a text without the name of a secret has no such secret
}{
	{
		pattern: regexp.MustCompile(keyBegins + `(?s:.*?)` + keyEnds),
		with:    "[removed: a private key]",
		has:     "-----BEGIN ",
	},
	{ // its end is missing
		pattern: regexp.MustCompile(keyBegins + `[A-Za-z0-9+/=\s\\]*`),
		with:    "[removed: a private key]",
		has:     "-----BEGIN ",
	},
	{
		pattern: regexp.MustCompile(`\bS[ACNOUX][A-Z2-7]{56}\b`),
		with:    "[removed: a NATS seed]",
	},
	{
		pattern: regexp.MustCompile(`(?i)` + header + headerScheme + headerValue),
		with:    "$1$2$3[removed]",
	},
	{
		pattern: regexp.MustCompile(`\b(?:` + strings.Join([]string{
			`gh[pousr]_[A-Za-z0-9]{20,}`,
			`github_pat_[A-Za-z0-9_]{20,}`,
			`glpat-[A-Za-z0-9_-]{16,}`,
			`xox[abeoprs]-[A-Za-z0-9-]{10,}`,
			`sk_(?:live|test)_[A-Za-z0-9]{10,}`,
			`AIza[A-Za-z0-9_-]{30,}`,
			`npm_[A-Za-z0-9]{30,}`,
			`hvs\.[A-Za-z0-9_-]{20,}`,
		}, "|") + `)`),
		with: "[removed: a token]",
	},
	{
		pattern: regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`),
		with:    "[removed: a token]",
		has:     "eyJ",
	},
	{
		pattern: regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}`),
		with:    "$1$2[removed]",
	},
	{
		pattern: regexp.MustCompile(`(` + urlScheme + `)[^\s/@:"'\\]*:` + urlPassword + `@`),
		with:    "$1[removed]@",
		has:     "://",
	},
	{ // a data source name, such as "user:password@tcp(host)"
		pattern: regexp.MustCompile(`[^\s/@:"'\\=]+:[^\s"'\\]*@((?:tcp|udp|unix)\()`),
		with:    "[removed]@$1",
		has:     "@",
	},
	{
		pattern: regexp.MustCompile(`(` + urlScheme + `)[^\s/@"'\\]+@`),
		with:    "$1[removed]@",
		has:     "://",
	},
	{
		pattern: regexp.MustCompile(`(?i)(` + option + `)` + optionValue),
		with:    "$1[removed]",
		named:   true,
	},
	{
		pattern: regexp.MustCompile(assigned + `"(?:[^"\\]|\\.)*"`),
		with:    `$1"[removed]"`,
		named:   true,
	},
	{
		pattern: regexp.MustCompile(assigned + `'[^']*'`),
		with:    `$1'[removed]'`,
		named:   true,
	},
	{
		pattern: regexp.MustCompile(assigned + `\\*["']?[^\s,;&"'\\{}\])\[]+`),
		with:    "$1[removed]",
		named:   true,
	},
	{
		pattern: regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`),
		with:    "[removed: an access key]",
		has:     "IA",
	},
}

// listed matches a name of a secret before a list or a map.
var listed = regexp.MustCompile(assigned + `[\[{]`)

// lists removes lists and maps behind the name of a secret: up to the end of each, or of
// its line.
func lists(text string) string {
	var b strings.Builder
	for {
		at := listed.FindStringIndex(text)
		if at == nil {
			return b.String() + text
		}
		b.WriteString(text[:at[1]-1])
		text = text[at[1]-1:]
		n := closed(text)
		if !strings.HasPrefix(text, "[removed") && text[:n] != "[]" && text[:n] != "{}" && text[:n] != "[secret]" {
			b.WriteString("[removed]")
		} else {
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
}

// closed returns the length of the list or map with which a text begins. A text in quotes
// may have brackets.
func closed(text string) int {
	depth, quote := 0, byte(0)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\n':
			return i
		case c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

// Text removes from a text what looks like a secret.
func Text(text string) string {
	named := secretKey.MatchString(text)
	if named {
		text = lists(text)
	}
	for _, s := range secrets {
		if strings.Contains(text, s.has) && (named || !s.named) {
			text = s.pattern.ReplaceAllString(text, s.with)
		}
	}
	return text
}

// JSON removes from JSON what looks like a secret: in each text, and each value whose
// name says so.
func JSON(text []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(without(v), "", "  ")
}

// Named reports whether a key names a secret, such as "db.password". The key of a file that
// has the secret does not.
func Named(key string) bool {
	return secretKey.MatchString(key) && !strings.HasSuffix(key, "_file") && !strings.HasSuffix(key, "_path")
}

// without returns v without secrets.
func without(v any) any {
	switch v := v.(type) {
	case string:
		return Text(v)
	case []any:
		for i, x := range v {
			v[i] = without(x)
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, x := range v {
			if secretKey.MatchString(name) {
				clean[Text(name)] = blank(x)
			} else {
				clean[Text(name)] = without(x)
			}
		}
		return clean
	}
	return v
}

// blank returns the value of a secret with all its texts and numbers removed.
func blank(v any) any {
	switch v := v.(type) {
	case string:
		if v == "" {
			return v
		}
	case []any:
		for i, x := range v {
			v[i] = blank(x)
		}
		return v
	case map[string]any:
		for name, x := range v {
			v[name] = blank(x)
		}
		return v
	case bool, nil:
		return v
	}
	return "[removed]"
}
