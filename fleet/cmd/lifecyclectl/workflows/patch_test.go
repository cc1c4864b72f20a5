package workflows

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func TestFieldsOfAPatch(t *testing.T) {
	for text, want := range map[string]string{
		"3": "3", "-1.5e3": "-1500", "true": "true", "null": "null", `"007"`: `"007"`, "007": `"007"`, "soon": `"soon"`, "a b": `"a b"`, "": `""`,
		`{"a": [1]}`: `{"a":[1]}`, "9007199254740991": "9007199254740991", "9007199254740992": `"9007199254740992"`, "-99999999999999999999": `"-99999999999999999999"`, "1 2": `"1 2"`,
	} {
		v, err := fieldValue(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := valueText(v); got != want {
			t.Errorf("%q is sent as %s, want %s", text, got, want)
		}
	}
	for args, want := range map[string]string{
		"":        "no field is given: want FIELD=VALUE, or --file",
		"a":       `"a" is not a change: want FIELD=VALUE`,
		"=1":      `"=1" is not a change`,
		"a=1 a=2": "the field a is given twice",
	} {
		if _, err := patchFields(t.Context(), strings.Fields(args), "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
	for text, want := range map[string]string{"[1]": "is not a JSON object", "{": "is not a JSON object", `{"a":1}`: ""} {
		f, err := patchFields(t.Context(), []string{"b=2"}, "-", strings.NewReader(text))
		if want == "" && (err != nil || len(f.GetFields()) != 2) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", text, f, err)
		}
	}
}

func FuzzFieldValue(f *testing.F) {
	for _, s := range []string{"1", "soon", `"a"`, `{"a":[null,1e9]}`, "1e999", `{"a":1,"a":2}`, "\xff", `"\ud800"`, "[[[["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := fieldValue(text)
		if err != nil {
			return
		}
		if again, err := fieldValue(text); err != nil || !proto.Equal(v, again) {
			t.Errorf("%q is %v, and then %v, %v", text, v, again, err)
		}
	})
}
