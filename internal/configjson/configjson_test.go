package configjson

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/internal/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type sample struct {
	Name   string        `koanf:"name"`
	Linger time.Duration `koanf:"linger" reload:"live"`
	Quiet  time.Duration `koanf:"drain_quiet"`
	Ratio  float64       `koanf:"ratio"`
	Token  token.Secret  `koanf:"token"`
}

func TestJSONHasTheFormOfAFile(t *testing.T) {
	v := sample{Name: "a \"b\"", Linger: 90 * time.Second, Quiet: -1, Token: "hunter2"}
	text, err := Marshal(reflect.ValueOf(v), -1)
	if want := `{"name":"a \"b\"","linger":"1m30s","drain_quiet":"off"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	back := sample{Ratio: 0.5}
	if err := Unmarshal(text, reflect.ValueOf(&back).Elem(), -1); err != nil || back != (sample{Name: v.Name, Linger: v.Linger, Quiet: -1, Ratio: 0.5}) {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"lingr": "1s"}`:                  "there is no key lingr: did you mean linger?",
		`{"drainQuiet": "1s"}`:             "there is no key drainQuiet: did you mean drain_quiet?",
		`{"other": 1}`:                     "there is no key other",
		`{"name": 5}`:                      "name: ",
		`{"linger": "1s", "linger": "1s"}`: `the key "linger" occurs twice`,
		`{"linger": null}`:                 "linger is null: want a duration with its unit",
		`{"linger": 5}`:                    "linger is 5: want a duration with its unit",
		`{"linger": "-1s"}`:                `linger is "-1s": want 0s or more`,
		`5`:                                "want an object",
		`{"name": `:                        "unexpected end of JSON input",
	} {
		if err := Unmarshal([]byte(text), reflect.ValueOf(new(sample)).Elem(), -1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if err := Unmarshal([]byte("null"), reflect.ValueOf(new(sample)).Elem(), -1); err != nil {
		t.Error(err)
	}
}
