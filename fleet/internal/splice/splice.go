package splice

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"
)

// Apply returns stored with the changes that lead from before to after. before is the
// encoding of what a program decoded from stored, after the encoding of what it made
// of that. All three are valid JSON. s describes the program's type; nil describes none.
//
// Objects are merged at every depth. An element of an array that did not change keeps
// its stored bytes, wherever it moved. A changed element is replaced, unless its type
// has a key (see [Of]): then it is merged with the stored element of that key. A value
// whose type has an encoding of its own is replaced as a whole, and so is everything
// else that changed. Of a member that is stored twice, both change.
func (s *Shape) Apply(stored, before, after []byte) []byte {
	if bytes.Equal(before, after) {
		return stored
	}
	if s != nil && s.coded {
		return after
	}
	was, old, is := gjson.ParseBytes(before), gjson.ParseBytes(stored), gjson.ParseBytes(after)
	switch {
	case was.IsObject() && old.IsObject() && is.IsObject():
		return s.object(stored, before, after)
	case was.IsArray() && old.IsArray() && is.IsArray():
		return s.array(old.Array(), was.Array(), is.Array())
	}
	return after
}

// Set returns the object stored with another value of one of its members. It adds the
// member when there is none.
func (s *Shape) Set(stored []byte, name string, value []byte) []byte {
	out := make([]byte, 0, len(stored)+len(name)+len(value)+4)
	done, copied := false, 0
	members(stored, func(m member) {
		if s.resolve(m.name) == name {
			out = append(append(out, stored[copied:m.value]...), value...)
			done, copied = true, m.end
		}
	})
	if done {
		return append(out, stored[copied:]...)
	}
	quoted, _ := json.Marshal(name) // a string has an encoding
	return s.object(stored, []byte("{}"), bytes.Join([][]byte{[]byte("{"), quoted, []byte(":"), value, []byte("}")}, nil))
}

// member is where a member of an object stands: its quoted name at start, its value from
// value to end.
type member struct {
	name              string
	start, value, end int
}

// members calls visit for each member of an object, in order.
func members(data []byte, visit func(member)) {
	gjson.ParseBytes(data).ForEach(func(name, value gjson.Result) bool {
		visit(member{name: name.Str, start: name.Index, value: value.Index, end: value.Index + len(value.Raw)})
		return true
	})
}

func (s *Shape) object(stored, before, after []byte) []byte {
	was, is := make(map[string][]byte), make(map[string][]byte)
	members(before, func(m member) { was[m.name] = before[m.value:m.end] })
	members(after, func(m member) { is[m.name] = after[m.value:m.end] })
	out := make([]byte, 0, len(stored)+len(after))
	out = append(out, '{')
	add := func(name, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, name...), value...)
	}
	found := make(map[string]bool) // in stored
	members(stored, func(m member) {
		name := s.resolve(m.name)
		found[name] = true
		before, had := was[name]
		now, has := is[name]
		value := stored[m.value:m.end]
		switch {
		case has:
			add(stored[m.start:m.value], s.member(name).Apply(value, before, now))
		case !had: // the program does not know it
			add(stored[m.start:m.value], value)
		}
	})
	members(after, func(m member) {
		if value := after[m.value:m.end]; !found[m.name] && !bytes.Equal(was[m.name], value) {
			add(after[m.start:m.value], value)
		}
	})
	return append(out, '}')
}

func (s *Shape) array(stored, before, after []gjson.Result) []byte {
	element := s.element()
	free := make(map[string][]int)  // elements of before that none of after continues yet
	if len(stored) == len(before) { // otherwise the program's type holds another number of elements
		for i := range before {
			id := element.id(before[i])
			free[id] = append(free[id], i)
		}
	}
	out := []byte("[")
	for i := range after {
		if i > 0 {
			out = append(out, ',')
		}
		id := element.id(after[i])
		if same := free[id]; len(same) > 0 {
			free[id] = same[1:]
			out = append(out, element.Apply([]byte(stored[same[0]].Raw), []byte(before[same[0]].Raw), []byte(after[i].Raw))...)
		} else {
			out = append(out, after[i].Raw...)
		}
	}
	return append(out, ']')
}

// id tells the elements of an array apart: by their key, or by their whole encoding.
func (s *Shape) id(element gjson.Result) string {
	if s == nil || s.key == "" || !element.IsObject() {
		return element.Raw
	}
	id := element.Raw
	element.ForEach(func(name, value gjson.Result) bool {
		if name.Str == s.key {
			id = value.Raw
		}
		return true
	})
	return id
}
