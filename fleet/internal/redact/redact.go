// Package redact takes out of texts what looks like a secret.
package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// secretNames are words in the name of a secret.
const secretNames = `(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|encryption[_-]?key|signing[_-]?key|hmac[_-]?key|credential|session[_-]?id|amz-signature|(?:\b|_)(?:pass|pwd|sig)\b)`

// secretKey matches the name of a secret.
var secretKey = regexp.MustCompile(`(?i)` + secretNames)

// assigned matches a name of a secret in a text, and what is between it and its value.
const assigned = `(?i)([A-Za-z0-9_.-]*` + secretNames + `[A-Za-z0-9_-]*["'\\]*\s*[=:]\s*)`

// secrets are the marks of a secret in a text, and what stays of each.
var secrets = []struct {
	mark *regexp.Regexp
	with string
	has  string // a text without it has no such secret

	named bool // a text without the name of a secret has no such secret
}{
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`), "[removed: a private key]", "-----BEGIN ", false},
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\]*`), "[removed: a private key]", "-----BEGIN ", false}, // its end is missing
	{regexp.MustCompile(`\bS[ACNOUX][A-Z2-7]{56}\b`), "[removed: a NATS seed]", "", false},
	{regexp.MustCompile(`(?i)\b((?:set-)?cookie|(?:proxy-)?authorization)(["'\\]*\s*[=:]\s*)((?:(?:bearer|basic|digest|negotiate|ntlm|token|apikey)[ \t]+)?)(?:\[[^\]\n]*\]|"(?:[^"\\\n]|\\.)*"|[^\n]+)`), "$1$2$3[removed]", "", false},
	{regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk_(?:live|test)_[A-Za-z0-9]{10,}|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}|hvs\.[A-Za-z0-9_-]{20,})`), "[removed: a token]", "", false},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`), "[removed: a token]", "eyJ", false},
	{regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}`), "$1$2[removed]", "", false},
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@:"'\\]*:(?:[^\s/"'\\]*|[0-9]*[^\s/0-9"'\\][^\s"'\\]*)@`), "$1[removed]@", "://", false},
	{regexp.MustCompile(`[^\s/@:"'\\=]+:[^\s"'\\]*@((?:tcp|udp|unix)\()`), "[removed]@$1", "@", false},
	{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@"'\\]+@`), "$1[removed]@", "://", false},
	{regexp.MustCompile(`(?i)(--[a-z0-9-]*` + secretNames + `[a-z0-9-]*[ \t]+)(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\[-][^\s"']*)`), "$1[removed]", "", true},
	{regexp.MustCompile(assigned + `"(?:[^"\\]|\\.)*"`), `$1"[removed]"`, "", true},
	{regexp.MustCompile(assigned + `'[^']*'`), `$1'[removed]'`, "", true},
	{regexp.MustCompile(assigned + `\\*["']?[^\s,;&"'\\{}\])\[]+`), "$1[removed]", "", true},
	{regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`), "[removed: an access key]", "IA", false},
}

// listed matches a name of a secret before a list or a map.
var listed = regexp.MustCompile(assigned + `[\[{]`)

// lists takes out lists and maps behind the name of a secret: up to the end of each, or of
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

// Text takes out of a text what looks like a secret.
func Text(text string) string {
	named := secretKey.MatchString(text)
	if named {
		text = lists(text)
	}
	for _, s := range secrets {
		if !strings.Contains(text, s.has) || !named && s.named {
			continue
		}
		text = s.mark.ReplaceAllString(text, s.with)
	}
	return text
}

// JSON takes out of JSON what looks like a secret: in each text, and the texts whose
// names say so.
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

// blank returns the value of a secret without what it says: all texts and numbers in it.
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
