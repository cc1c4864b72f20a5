package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/pleme-io/lifecycle-go"
)

// A whole number has all its digits, in each format and from a store.
func TestWholeNumbersKeepTheirDigits(t *testing.T) {
	type T struct {
		ID    int64 `koanf:"id"`
		Count uint64
		Ratio float64
		Next  []int64
	}
	want := T{ID: 9007199254740993, Count: 18446744073709551615, Ratio: 5, Next: []int64{-9223372036854775808, 1000}}
	equal := func(got T) bool {
		return got.ID == want.ID && got.Count == want.Count && got.Ratio == want.Ratio && len(got.Next) == 2 && got.Next[0] == want.Next[0] && got.Next[1] == want.Next[1]
	}
	for name, content := range map[string]string{
		"a.json": `{"id": 9007199254740993, "count": 18446744073709551615, "ratio": 5, "next": [-9223372036854775808, 1e3]}`,
		"a.yaml": "id: 9007199254740993\ncount: 18446744073709551615\nratio: 5\nnext: [-9223372036854775808, 1e3]\n",
	} {
		if got, err := Load[T](name, WithContent([]byte(content)), WithArgs(nil), WithEnviron(nil)); err != nil || !equal(got) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	settings := map[string]any{
		"id": json.Number("9007199254740993"), "count": json.Number("18446744073709551615"), "ratio": json.Number("5"),
		"next": []json.Number{"-9223372036854775808", "1e3"},
	}
	if got, err := Load[T]("", FromMap("settings", settings)); err != nil || !equal(got) {
		t.Errorf("json.Number: %+v, %v", got, err)
	}
	// A float of that size may have lost digits.
	for name, content := range map[string]string{"a.json": `{"id": 9007199254740993.0}`, "a.yaml": "id: 9007199254740993.0\n", "b.json": `{"count": 18446744073709551616}`} {
		if got, err := Load[T](name, WithContent([]byte(content)), WithArgs(nil), WithEnviron(nil)); err == nil || !strings.Contains(err.Error(), "want a whole number") {
			t.Errorf("%s: %+v, %v", content, got, err)
		}
	}
	if _, err := Load[T]("", FromMap("settings", map[string]any{"id": json.Number("x")})); err == nil || !strings.Contains(err.Error(), `id is "x": want a whole number`) {
		t.Errorf("%v", err)
	}
}

// A number or a truth value in quotes is a fault that says so.
func TestNumberInQuotes(t *testing.T) {
	for content, want := range map[string]string{
		"workers: '5'\n":   `workers is "5": want a whole number from 0 to 255, without quotes`,
		"ratio: '0.5'\n":   `ratio is "0.5": want a number, such as 0.9, without quotes`,
		"debug: 'true'\n":  `debug is "true": want true or false, without quotes`,
		"workers: '256'\n": `workers is "256": want a whole number from 0 to 255`,
		"debug: 'yes'\n":   `debug is "yes": want true or false`,
	} {
		_, err := loadWith(write(t, "service.yaml", content), nil, nil)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: error is %v, want %s", content, err, want)
		}
	}
}

// A date or a time of TOML without a zone does not say a point in time.
func TestTimeWithoutAZone(t *testing.T) {
	for content, want := range map[string]string{
		"since = 2026-01-02\n":                "since is 2026-01-02: want a time with its zone, such as 2006-01-02T15:04:05Z",
		"since = 2026-01-02T03:04:05\n":       "since is 2026-01-02T03:04:05: want a time with its zone",
		"since = 5\n":                         "since is 5: want a time with its zone",
		"since = 2026-01-02T03:04:05+02:00\n": "",
	} {
		_, err := loadWith(write(t, "service.toml", content), nil, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error is %v, want %s", content, err, want)
		}
	}
}

// A fault of one item of a map names the variable or the flag.
func TestFaultOfAnItemNamesItsSource(t *testing.T) {
	type T struct{ Limits map[string]int }
	_, err := Load[T]("", WithEnvPrefix("SVC"), WithEnviron([]string{"SVC_LIMITS=a=x"}), WithArgs([]string{"-limits=b.c=y"}))
	if err == nil || !strings.Contains(err.Error(), `config: environment SVC_LIMITS: limits.a is "x"`) || !strings.Contains(err.Error(), `config: flag -limits: limits.b.c is "y"`) {
		t.Errorf("%v", err)
	}
}

// A secret that a program has in a map keeps its text.
func TestSecretsOfAStore(t *testing.T) {
	type T struct {
		Token, Other lifecycle.Secret
		All          []lifecycle.Secret
		ByName       map[string]lifecycle.Secret
	}
	secret := lifecycle.Secret("hunter2")
	for _, text := range []bool{false, true} {
		got, err := Load[T]("", From(Source{Name: "store", Text: text, Read: func([]string) (map[string]any, error) {
			return map[string]any{"token": secret, "other": &secret, "all": []any{secret}, "by_name": map[string]any{"a": secret}}, nil
		}}))
		if err != nil || got.Token != secret || got.Other != secret || got.All[0] != secret || got.ByName["a"] != secret {
			t.Errorf("text %v: %q, %q, %q, %q, %v", text, string(got.Token), string(got.Other), string(got.All[0]), string(got.ByName["a"]), err)
		}
	}
}

// A koanf that the program fills from the environment too has texts for numbers.
func TestForeignKoanfWithTexts(t *testing.T) {
	type T struct {
		Workers int
		Debug   bool
		Tags    []string
		Poll    time.Duration
	}
	k := filledKoanf(t, map[string]any{"workers": "5", "debug": "true", "tags": "a,b", "poll": "5s"})
	got, err := Load[T]("", FromKoanf(k))
	if err != nil || got.Workers != 5 || !got.Debug || len(got.Tags) != 2 || got.Poll != 5*time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	for want, values := range map[string]map[string]any{
		`koanf: workers is "05": a number with a leading zero`: {"workers": "05"},
		`koanf: poll is "5": want a duration with its unit`:    {"poll": "5"},
		`koanf: workers is "x": want a whole number`:           {"workers": "x"},
	} {
		if _, err := Load[T]("", FromKoanf(filledKoanf(t, values))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

func filledKoanf(t *testing.T, values map[string]any) *koanf.Koanf {
	t.Helper()
	k := koanf.New(".")
	if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
		t.Fatal(err)
	}
	return k
}
