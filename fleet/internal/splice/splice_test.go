package splice_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/internal/splice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type leg struct {
	Name  string `json:"name" lifecycle:"key"`
	Miles int    `json:"miles"`
}

type address struct {
	City   string `json:"city"`
	Street string `json:"street,omitempty"`
}

type person struct {
	Phase string            `json:"phase"`
	Count int               `json:"count,omitempty"`
	Home  address           `json:"home"`
	Work  *address          `json:"work,omitempty"`
	Tags  []string          `json:"tags,omitempty"`
	Legs  []leg             `json:"legs,omitempty"`
	Past  []address         `json:"past,omitempty"`
	Notes map[string]string `json:"notes,omitempty"`
	Any   any               `json:"any,omitempty"`
	Born  time.Time         `json:"born,omitzero"`
}

var people = splice.Of(reflect.TypeFor[*person]())

func TestChangesTouchNothingElse(t *testing.T) {
	tests := map[string]struct {
		stored string
		change func(*person)
		want   string
	}{
		"nothing":                {`{ "phase" : "a" }`, func(*person) {}, `{ "phase" : "a" }`},
		"unknown fields":         {`{"new":1,"phase":"a","home":{"zip":7}}`, func(p *person) { p.Phase = "b" }, `{"new":1,"phase":"b","home":{"zip":7}}`},
		"depth":                  {`{"phase":"a","home":{"city":"Ulm","zip":7}}`, func(p *person) { p.Home.City = "Bonn" }, `{"phase":"a","home":{"city":"Bonn","zip":7}}`},
		"pointer":                {`{"phase":"a","work":{"zip":7}}`, func(p *person) { p.Work.City = "Bonn" }, `{"phase":"a","work":{"zip":7,"city":"Bonn"}}`},
		"emptied":                {`{"phase":"a","count":3,"x":null}`, func(p *person) { p.Count = 0 }, `{"phase":"a","x":null}`},
		"filled":                 {`{"x":[ ]}`, func(p *person) { p.Count = 3 }, `{"x":[ ],"count":3}`},
		"cleared object":         {`{"phase":"a","work":{"zip":7}}`, func(p *person) { p.Work = nil }, `{"phase":"a"}`},
		"folded name":            {`{"PHASE":"a","Count":1}`, func(p *person) { p.Phase, p.Count = "b", 0 }, `{"PHASE":"b"}`},
		"escaped name":           {`{"ph\u0061se":"a"}`, func(p *person) { p.Phase = "b" }, `{"ph\u0061se":"b"}`},
		"a key twice":            {`{"phase":"a","phase":"b"}`, func(p *person) { p.Phase = "c" }, `{"phase":"c","phase":"c"}`},
		"large numbers":          {`{"phase":"a","any":{"n":9007199254740993},"id":18446744073709551615}`, func(p *person) { p.Phase = "b" }, `{"phase":"b","any":{"n":9007199254740993},"id":18446744073709551615}`},
		"large number beside":    {`{"any":{"n":9007199254740993,"m":1}}`, func(p *person) { p.Any.(map[string]any)["m"] = 2 }, `{"any":{"n":9007199254740993,"m":2}}`},
		"map":                    {`{"notes":{"a":"1","A":"2","b":"3"}}`, func(p *person) { p.Notes["A"] = "x"; delete(p.Notes, "b") }, `{"notes":{"a":"1","A":"x"}}`},
		"array":                  {`{"tags":["a", "b"]}`, func(p *person) { p.Tags = append(p.Tags, "c") }, `{"tags":["a","b","c"]}`},
		"moved elements":         {`{"past":[{"city":"a","zip":1},{"city":"b","zip":2}]}`, func(p *person) { p.Past = p.Past[1:] }, `{"past":[{"city":"b","zip":2}]}`},
		"changed element":        {`{"past":[{"city":"a","zip":1},{"city":"b","zip":2}]}`, func(p *person) { p.Past[0].City = "c" }, `{"past":[{"city":"c"},{"city":"b","zip":2}]}`},
		"changed keyed element":  {`{"legs":[{"name":"a","miles":1,"x":1},{"name":"b","miles":2,"x":2}]}`, func(p *person) { p.Legs[0], p.Legs[1] = p.Legs[1], leg{"a", 9} }, `{"legs":[{"name":"b","miles":2,"x":2},{"name":"a","miles":9,"x":1}]}`},
		"time":                   {`{"born":"2001-02-03T04:05:06Z","x":1}`, func(p *person) { p.Born = p.Born.Add(time.Hour) }, `{"born":"2001-02-03T05:05:06Z","x":1}`},
		"another kind of value":  {`{"any":[1]}`, func(p *person) { p.Any = map[string]any{"a": 1} }, `{"any":{"a":1}}`},
		"brackets in text":       {`{"x":"}],\"{[","phase":"a"}`, func(p *person) { p.Phase = "b" }, `{"x":"}],\"{[","phase":"b"}`},
		"null became an object":  {`{"work":null,"x":1}`, func(p *person) { p.Work = &address{City: "c"} }, `{"work":{"city":"c"},"x":1}`},
		"nothing but the change": {`{}`, func(p *person) { p.Phase = "b" }, `{"phase":"b"}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var p person
			must(t, json.Unmarshal([]byte(test.stored), &p))
			before := encode(t, &p)
			test.change(&p)
			after := encode(t, &p)
			got := people.Apply([]byte(test.stored), before, after)
			if string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			var back person
			must(t, json.Unmarshal(got, &back))
			if again := encode(t, &back); !bytes.Equal(again, after) {
				t.Errorf("it decodes to %s, want %s", again, after)
			}
		})
	}
}

func TestSet(t *testing.T) {
	for stored, want := range map[string]string{
		`{"phase":"a","x":[1]}`:     `{"phase":"new","x":[1]}`,
		` { "Phase" : "a" , "x":1}`: ` { "Phase" : "new" , "x":1}`,
		`{"x":{"phase":"a"}}`:       `{"x":{"phase":"a"},"phase":"new"}`,
		`{"phase":1,"phase":"b"}`:   `{"phase":"new","phase":"new"}`,
		`{}`:                        `{"phase":"new"}`,
	} {
		if got := people.Set([]byte(stored), "phase", []byte(`"new"`)); string(got) != want {
			t.Errorf("%s: got %s, want %s", stored, got, want)
		}
	}
}

// A depth that package json still reads works.
func TestDeepNesting(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 4900) + strings.Repeat(`]}`, 4900)
	got := people.Apply([]byte(`{"x":`+deep+`,"phase":"a"}`), []byte(`{"phase":"a"}`), []byte(`{"phase":"b"}`))
	if want := `{"x":` + deep + `,"phase":"b"}`; string(got) != want {
		t.Error("the deep value has changed")
	}
	other := strings.Replace(deep, `[]`, `[1]`, 1)
	if got := people.Apply([]byte(deep), []byte(deep), []byte(other)); string(got) != other {
		t.Error("a change at the depth is lost")
	}
}

// roman reads what it has written as another value.
type roman struct{ Value string }

func (r roman) MarshalText() ([]byte, error)  { return []byte(r.Value), nil }
func (r *roman) UnmarshalText(b []byte) error { r.Value = strings.ToLower(string(b)); return nil }

// pair has an encoding of its own, which is an object.
type pair struct{ a, b int }

func (p pair) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{"a": p.a, "b": p.b}) }
func (p *pair) UnmarshalJSON([]byte) error  { return nil }

// What has an encoding of its own is replaced as a whole: only its type knows what the
// parts mean.
func TestTypesWithAnEncodingOfTheirOwn(t *testing.T) {
	type record struct {
		R roman
		P pair
		L []*pair
	}
	s := splice.Of(reflect.TypeFor[record]())
	stored := `{"x":1,"R":"IV","P":{"a":1,"b":2,"c":3},"L":[{"a":1,"c":3}]}`
	before := encode(t, record{roman{"iv"}, pair{1, 2}, []*pair{{1, 0}}})
	after := encode(t, record{roman{"v"}, pair{1, 5}, []*pair{{1, 7}}})
	if got, want := string(s.Apply([]byte(stored), before, after)), `{"x":1,"R":"v","P":{"a":1,"b":5},"L":[{"a":1,"b":7}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if splice.Of(reflect.TypeFor[pair]()).Plain("a") || s.Plain("P") || !people.Plain("phase") || people.Plain("other") {
		t.Error("the phase can be set in an object whose encoding is the type's own")
	}
}

func FuzzApply(f *testing.F) {
	f.Add(`{"phase":"a","x":{"y":[1,{"z":2}]}}`, `{"phase":"b"}`)
	f.Add(`{"legs":[{"name":"a","q":1}]}`, `{"legs":[{"name":"a","miles":3},{"name":"b"}]}`)
	f.Fuzz(func(t *testing.T, stored, change string) {
		var p person
		if json.Unmarshal([]byte(stored), &p) != nil || !strings.HasPrefix(strings.TrimSpace(stored), "{") {
			return
		}
		before, err := json.Marshal(&p)
		if err != nil || json.Unmarshal([]byte(change), &p) != nil {
			return
		}
		after := encode(t, &p)
		got := people.Apply([]byte(stored), before, after)
		var back person
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatalf("%s with %s became %s: %v", stored, change, got, err)
		}
	})
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	must(t, err)
	return data
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
