package splice

import (
	"encoding/json"
)

// The functions below read valid JSON, and only as much of it as they need. They do
// not recurse, so depth costs nothing.

// member is where a member of an object stands: its name from start to close, both
// quotes included, its value from value to end.
type member struct {
	start, close, value, end int
}

// name returns the member's name as it is meant.
func (m member) name(data []byte) string {
	quoted := data[m.start:m.close]
	for _, c := range quoted[1 : len(quoted)-1] {
		if c == '\\' || c >= 0x80 {
			var name string
			if json.Unmarshal(quoted, &name) == nil {
				return name
			}
			break
		}
	}
	return string(quoted[1 : len(quoted)-1])
}

// scan calls visit for each member of an object, in order. It does nothing for another
// value.
func scan(data []byte, visit func(member)) {
	i := space(data, 0)
	if i == len(data) || data[i] != '{' {
		return
	}
	for i = space(data, i+1); i < len(data) && data[i] == '"'; i = space(data, i+1) {
		m := member{start: i, close: text(data, i)}
		m.value = space(data, space(data, m.close)+1)
		m.end = skip(data, m.value)
		visit(m)
		if i = space(data, m.end); i == len(data) || data[i] != ',' {
			return
		}
	}
}

// values returns the members of an object by name.
func values(data []byte) map[string][]byte {
	all := make(map[string][]byte)
	scan(data, func(m member) { all[m.name(data)] = data[m.value:m.end] })
	return all
}

// elements returns the elements of an array.
func elements(data []byte) [][]byte {
	var all [][]byte
	for i := space(data, space(data, 0)+1); i < len(data) && data[i] != ']'; i = space(data, i+1) {
		end := skip(data, i)
		all = append(all, data[i:end])
		if i = space(data, end); i == len(data) || data[i] != ',' {
			break
		}
	}
	return all
}

// first returns the first byte of a value, which tells its kind.
func first(data []byte) byte {
	if i := space(data, 0); i < len(data) {
		return data[i]
	}
	return 0
}

// space returns the first index at or after i that is not white space.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// text returns the index after the string that begins at i.
func text(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// skip returns the index after the value that begins at i.
func skip(data []byte, i int) int {
	for depth := 0; i < len(data); {
		switch data[i] {
		case '"':
			i = text(data, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\t', '\r':
			i++
			continue
		default:
			for i < len(data) && !ends(data[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return len(data)
}

// ends reports whether a byte ends a number or a literal.
func ends(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}
