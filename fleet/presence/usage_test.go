package presence

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// A growth is told once it has lasted a minute, and ends when the number falls or stands still.
func TestGrowth(t *testing.T) {
	began := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		value func(second int) int64
		from  int64 // 0 for no growth
	}{
		"a leak":                       {func(s int) int64 { return 100 + int64(s) }, 100},
		"a leak with some noise":       {func(s int) int64 { return 1000 + 10*int64(s) - int64(s%2) }, 1000},
		"nothing":                      {func(int) int64 { return 100 }, 0},
		"a sawtooth":                   {func(s int) int64 { return 100 + 10*int64(s%40) }, 0},
		"a step":                       {func(s int) int64 { return 100 + 100*min(int64(s)/100, 1) }, 0},
		"a growth that has ended":      {func(s int) int64 { return 100 + min(int64(s), 150) }, 0},
		"a growth that has just begun": {func(s int) int64 { return 100 + max(0, int64(s)-170) }, 0},
	} {
		var g growthMeter
		var got *Growth
		for s := 0; s <= 200; s += 5 {
			got = g.look(began.Add(time.Duration(s)*time.Second), test.value(s))
		}
		if test.from == 0 && got != nil || test.from != 0 && (got == nil || got.From != test.from || !got.Since.Equal(began)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The use of a processor is told once it has lasted a minute, and ends with the first pause.
func TestBusy(t *testing.T) {
	began := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		share func(second int) float64 // of one processor
		since int                      // in seconds, -1 for none
		want  int                      // percent
	}{
		"a loop without a pause":            {func(int) float64 { return 1 }, 0, 100},
		"three of them":                     {func(int) float64 { return 3 }, 0, 300},
		"an idle process":                   {func(int) float64 { return 0.01 }, -1, 0},
		"half of a processor":               {func(int) float64 { return 0.5 }, -1, 0},
		"a loop that has just begun":        {func(s int) float64 { return float64(min(1, s/150)) }, -1, 0},
		"a loop that began after a while":   {func(s int) float64 { return float64(min(1, s/75)) }, 75, 100},
		"a loop that has ended":             {func(s int) float64 { return float64(1 - min(1, s/150)) }, -1, 0},
		"a loop that pauses for some while": {func(s int) float64 { return float64(min(1, s%60/15)) }, -1, 0},
	} {
		var m busyMeter
		var got *Busy
		var used time.Duration
		for s := 0; s <= 195; s += 5 {
			got = m.look(began.Add(time.Duration(s)*time.Second), func() time.Duration { return used })
			used += time.Duration(5 * test.share(s) * float64(time.Second))
		}
		isSame := got != nil && got.Since.Equal(began.Add(time.Duration(test.since)*time.Second)) && got.Percent == test.want
		if test.since < 0 && got != nil || test.since >= 0 && !isSame {
			t.Errorf("%s: %+v", name, got)
		}
	}
	before := processorTime()
	if runtime.GOOS == "linux" && before == 0 {
		t.Error("this process knows of no processor time")
	}
}

// A process knows what it uses.
func TestUsageOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not tell")
	}
	var files []*os.File
	for range 50 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	var m usageMeter
	u := m.look(time.Now(), 1, "")
	for _, f := range files {
		_ = f.Close()
	}
	if u.Goroutines < 2 || u.Threads < 2 || u.Descriptors < 53 || u.Descriptors > 5000 || u.DescriptorLimit < u.Descriptors {
		t.Errorf("the usage is %+v", u)
	}
	if used := resident(); used < 1<<20 {
		t.Errorf("it uses %d bytes", used)
	}
	if again := m.look(time.Now(), 1, ""); again.Descriptors != u.Descriptors {
		t.Error("the system is asked twice within a minute")
	}
}
