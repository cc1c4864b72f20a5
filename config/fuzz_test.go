package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzConfig loads arbitrary files: no panic, no hang, and either a value or
// faults that name the file. A valid file loads the same twice.
func FuzzConfig(f *testing.F) {
	for _, content := range []string{
		"addr: x\nlifecycle:\n  drain_interval: 5s\n", "a: &a [*a]\n", "? {a: b}\n: c\n", "1: 2\n", "labels: {1: 02}\n", "<<: {addr: x}\n", "upstreams: [{name: a}, 5, null]\n", "---\n---\n", "tags: []\n",
		"since: 2026-01-02\n", "!!binary x: y\n", "lifecycle: null\n", "workers: 1e2\n", "workers: 0x10\n", "cache: {size: 99999999999999999999}\n", "\"addr\" : 'x'\n", "addr: |\n  x\n---\n",
		"- - ? a\n  : {b: [c, 'd'': 0755], \"e\\\"\": *f}\n", "x-a: &a !!map\n  b: 010\ncache: {size: 07,\n ttl: [}\n", "{addr, \"poll\":1s, ? x : y}", "\"a\\", "--- 0755\n",
	} {
		f.Add(byte(0), content)
	}
	for _, content := range []string{`{"addr":"x"}`, `{"cache":{"size":1e3}}`, `{"a":{"a":{"a":[[[]]]}}}`, `{"poll":1}`, `{"":""}`, `{"tags":[null]}`, `{"labels":{"":"x"}}`, "{}x", `{"addr":"\ud800"}`} {
		f.Add(byte(1), content)
	}
	for _, content := range []string{"addr='x'\n", "[lifecycle]\nlinger='1s'\n", "cache.size=1\n", "[[upstreams]]\nname='a'\n[[upstreams]]\n", "since=2026-01-02\n", "since=07:00:00\n", "ratio=inf\n", "[a.b.c]\n", "''=1\n"} {
		f.Add(byte(2), content)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, kind byte, content string) {
		path := filepath.Join(dir, "service"+[]string{".yaml", ".json", ".toml"}[kind%3])
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		first, err := loadWith(path, nil, nil)
		second, again := loadWith(path, nil, nil)
		if err == nil {
			if again != nil || !reflect.DeepEqual(first, second) {
				t.Errorf("taken, and then %+v, %v", second, again)
			}
			return
		}
		var fault *Fault
		if !errors.As(err, &fault) {
			t.Errorf("%v is not a Fault", err)
		}
		if again == nil || again.Error() != err.Error() {
			t.Errorf("the faults differ from one time to the next:\n%v\n%v", err, again)
		}
		if fault.Source != "" && !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not name the file", err)
		}
		if !utf8.ValidString(err.Error()) {
			t.Errorf("%q is not one line of text", err.Error())
		}
	})
}

// FuzzText loads arbitrary texts from the environment, for a key of each kind.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "5", "0", "5s", "off", "-1s", "true", "a,b", "a=b,c=d", "=", "1e400", "256", "NaN", "2026-01-02T03:04:05Z", "\x00", "9223372036854775808"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsRune(s, 0) {
			return // a variable cannot contain it
		}
		for _, name := range []string{"POLL", "WORKERS", "DEBUG", "RATIO", "TAGS", "LABELS", "SINCE", "CACHE_SIZE", "LIFECYCLE_LINGER", "LIFECYCLE_DRAIN_WAIT", "LIFECYCLE_MEMORY_LIMIT_RATIO"} {
			_, err := loadWith("", []string{"SERVICE_" + name + "=" + s}, nil)
			var fault *Fault
			if err != nil && !errors.As(err, &fault) {
				t.Errorf("%s=%q: %v is not a Fault", name, s, err)
			}
		}
	})
}
