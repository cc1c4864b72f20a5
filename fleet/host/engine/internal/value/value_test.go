package value

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutputs(t *testing.T) {
	for _, c := range []struct {
		name   string
		result any
		want   []engine.Output
		fault  string
	}{
		{"nothing", nil, nil, ""},
		{"text", "a", []engine.Output{{Data: []byte("a")}}, ""},
		{"bytes", []byte{0xff}, []engine.Output{{Data: []byte{0xff}}}, ""},
		{"message", map[string]any{"topic": "t", "data": "d", "headers": map[string]any{"A": "1", "B": []any{"2", "3"}}},
			[]engine.Output{{Topic: "t", Data: []byte("d"), Header: map[string][]string{"A": {"1"}, "B": {"2", "3"}}}}, ""},
		{"nulls", map[string]any{"topic": nil, "data": nil, "headers": nil}, []engine.Output{{}}, ""},
		{"list", []any{"a", map[string]any{"data": "b"}}, []engine.Output{{Data: []byte("a")}, {Data: []byte("b")}}, ""},
		{"number", 3.5, nil, "a number is not a message"},
		{"named", Named("function"), nil, "type function"},
		{"list in a list", []any{"a", []any{}}, nil, "element 1: a list is not a message"},
		{"unknown field", map[string]any{"subject": "x"}, nil, `no key "subject": it has topic, data and headers`},
		{"topic", map[string]any{"topic": 1}, nil, "topic is a number"},
		{"data", map[string]any{"data": true}, nil, "data is a boolean"},
		{"headers", map[string]any{"headers": "x"}, nil, "headers is text"},
		{"header", map[string]any{"headers": map[string]any{"A": 1.0}}, nil, `header "A" is a number`},
		{"header list", map[string]any{"headers": map[string]any{"A": []any{nil}}}, nil, `header "A" has nothing`},
	} {
		got, err := Outputs(c.result)
		switch {
		case c.fault == "" && (err != nil || len(got) != len(c.want) || len(got) > 0 && !reflect.DeepEqual(got, c.want)):
			t.Errorf("%s: %v, %v", c.name, got, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: %v, want %q", c.name, err, c.fault)
		}
	}
}

// FuzzOutputs checks that no result of a handler makes Outputs panic, and that
// accepted outputs can be checked against the limits.
func FuzzOutputs(f *testing.F) {
	for _, seed := range []string{`null`, `"a"`, `["a",{"topic":"t","data":"d","headers":{"A":["1"]}}]`, `{"topic":1}`, `[[[]]]`, `{"headers":{"":""}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return
		}
		outputs, err := Outputs(v)
		if err == nil {
			_ = engine.Limits{}.WithDefaults().Check(outputs)
		}
	})
}
