// Package splice changes stored JSON as a program changed its decoded value, and
// leaves the rest of the bytes alone: members that the program does not know, numbers
// that it cannot hold exactly, the form of what it did not touch. So programs of
// several generations can write one record, and none drops what another one stored.
package splice

import (
	"bytes"
	"encoding/json"
)

// Apply returns stored with the changes that lead from before to after. before is the
// encoding of what a program decoded from stored, after the encoding of what it made
// of that. All three are valid JSON. s describes the program's type; nil describes none.
//
// Objects are merged at every depth. An element of an array that did not change keeps
// its stored bytes, wherever it moved. A changed element is replaced, unless its type
// has a key (see [Of]): then it is merged with the stored element of that key.
// Everything else that changed is replaced. Of a member that is stored twice, both
// change.
func (s *Shape) Apply(stored, before, after []byte) []byte {
	if bytes.Equal(before, after) {
		return stored
	}
	switch kind := first(after); {
	case kind != first(before) || kind != first(stored):
	case kind == '{':
		return s.object(stored, before, after)
	case kind == '[':
		return s.array(stored, before, after)
	}
	return after
}

// Set returns the object stored with another value of one of its members. It adds the
// member when there is none.
func (s *Shape) Set(stored []byte, name string, value []byte) []byte {
	out := make([]byte, 0, len(stored)+len(name)+len(value)+4)
	done, copied := false, 0
	scan(stored, func(m member) {
		if s.names(stored, m, name) {
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

// names reports whether a stored member is decoded to the field of that name.
func (s *Shape) names(stored []byte, m member, name string) bool {
	if string(stored[m.start+1:m.close-1]) == name { // without a copy
		return true
	}
	return s.resolve(m.name(stored)) == name
}

func (s *Shape) object(stored, before, after []byte) []byte {
	was := values(before)
	type change struct {
		name        string
		quoted      []byte
		before, now []byte // now is nil for a member that is gone
		done        bool
	}
	var changes []*change
	byName := make(map[string]*change)
	add := func(c *change) { changes, byName[c.name] = append(changes, c), c }
	scan(after, func(m member) {
		name := m.name(after)
		now := after[m.value:m.end]
		old, had := was[name]
		delete(was, name)
		if !had || !bytes.Equal(old, now) {
			add(&change{name: name, quoted: after[m.start:m.close], before: old, now: now})
		}
	})
	for name, old := range was {
		byName[name] = &change{name: name, before: old, done: true}
	}
	out := make([]byte, 0, len(stored)+len(after))
	out = append(out, '{')
	comma := func() {
		if len(out) > 1 {
			out = append(out, ',')
		}
	}
	scan(stored, func(m member) {
		c := byName[s.resolve(m.name(stored))]
		switch {
		case c == nil:
			comma()
			out = append(out, stored[m.start:m.end]...)
		case c.now != nil:
			c.done = true
			comma()
			out = append(out, stored[m.start:m.value]...)
			out = append(out, s.member(c.name).Apply(stored[m.value:m.end], c.before, c.now)...)
		}
	})
	for _, c := range changes {
		if !c.done {
			comma()
			out = append(append(append(out, c.quoted...), ':'), c.now...)
		}
	}
	return append(out, '}')
}

func (s *Shape) array(stored, before, after []byte) []byte {
	old, was, is := elements(stored), elements(before), elements(after)
	if len(old) != len(was) { // the program's type holds another number of elements
		return after
	}
	from := make([]int, len(is)) // the stored element that each continues, -1 for none
	used := make([]bool, len(was))
	free := make(map[string][]int) // unused elements by their encoding
	for i := range is {
		from[i] = -1
		if i < len(was) && bytes.Equal(was[i], is[i]) {
			from[i], used[i] = i, true
		}
	}
	for j := range was {
		if !used[j] {
			free[string(was[j])] = append(free[string(was[j])], j)
		}
	}
	for i := range is {
		if same := free[string(is[i])]; from[i] < 0 && len(same) > 0 {
			from[i], used[same[0]] = same[0], true
			free[string(is[i])] = same[1:]
		}
	}
	if key := s.element().keyName(); key != "" {
		byKey := make(map[string][]int)
		for j := range was {
			if k := values(was[j])[key]; !used[j] && k != nil {
				byKey[string(k)] = append(byKey[string(k)], j)
			}
		}
		for i := range is {
			if from[i] >= 0 {
				continue
			}
			k := string(values(is[i])[key])
			if same := byKey[k]; k != "" && len(same) > 0 {
				from[i], byKey[k] = same[0], same[1:]
			}
		}
	}
	out := make([]byte, 0, len(stored)+len(after))
	out = append(out, '[')
	for i := range is {
		if i > 0 {
			out = append(out, ',')
		}
		if j := from[i]; j >= 0 {
			out = append(out, s.element().Apply(old[j], was[j], is[i])...)
		} else {
			out = append(out, is[i]...)
		}
	}
	return append(out, ']')
}
