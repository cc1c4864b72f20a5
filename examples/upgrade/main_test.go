//go:build linux

package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if text, isService := os.LookupEnv(settingsVar); isService { // a process of the test
		var s settings
		err := json.Unmarshal([]byte(text), &s)
		if err == nil {
			err = serve(s)
		}
		if err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestUpgradesLoseNothing(t *testing.T) {
	var out strings.Builder
	if err := show(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	want := regexp.MustCompile(`^process \d+ serves
upgraded: process \d+ serves
upgraded: process \d+ serves
upgraded: process (\d+) serves
upgrade: it ended before it said "ready" \(process \d+: exit status 1\)
process (\d+) serves; [1-9]\d* requests were answered, 0 lost
$`)
	m := want.FindStringSubmatch(out.String())
	if m == nil || m[1] != m[2] {
		t.Errorf("it says\n%s", &out)
	}
}
