package pages

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Only the parts of the generator change, and the text around them stays.
func TestFillReplacesItsPartsOnly(t *testing.T) {
	page := "# Title\n\n<!-- bench: a -->\nold\n<!-- end of bench -->\n\ntext\n\n<!-- other: b -->\nkept\n<!-- end of other -->\n" +
		"<!-- bench:\nrows: [1]\ncolumns: 2\n-->\n<!-- end of bench -->\n"
	var asked []string
	got, err := fill(page, "bench", func(what string) (string, error) {
		asked = append(asked, what)
		return "| new |\n", nil
	})
	want := "# Title\n\n<!-- bench: a -->\n\n| new |\n\n<!-- end of bench -->\n\ntext\n\n<!-- other: b -->\nkept\n<!-- end of other -->\n" +
		"<!-- bench:\nrows: [1]\ncolumns: 2\n-->\n\n| new |\n\n<!-- end of bench -->\n"
	if err != nil || got != want {
		t.Errorf("%v, and the page is\n%s", err, got)
	}
	if strings.Join(asked, ";") != "a;rows: [1]\ncolumns: 2" {
		t.Errorf("it asked for %q", asked)
	}
	again, err := fill(got, "bench", func(string) (string, error) { return "| new |", nil })
	if err != nil || again != got {
		t.Errorf("the second time: %v, and the page is\n%s", err, again)
	}
}

func TestFillNamesThePartThatIsWrong(t *testing.T) {
	const part = "<!-- bench: a -->\n<!-- end of bench -->\n"
	fill := func(page string) error {
		_, err := fill(page, "bench", func(what string) (string, error) {
			if what == "unknown" {
				return "", errors.New("it was not measured")
			}
			return what, nil
		})
		return err
	}
	for page, want := range map[string]string{
		part + "<!-- bench: b -->\n":                              "part 2 of bench has no <!-- end of bench -->",
		part + "<!-- bench: b":                                    "part 2 of bench has no <!-- end of bench -->",
		"<!-- bench: b -->\n" + part:                              "part 1 of bench has no <!-- end of bench -->",
		part + "<!-- bench: unknown -->\n<!-- end of bench -->\n": "part 2 of bench: it was not measured",
	} {
		if err := fill(page); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", page, err, want)
		}
	}
}

func TestTable(t *testing.T) {
	got := Table([]string{"", "a"}, [][]string{{"x", "1"}, {"y", ""}})
	if want := "| | a |\n| --- | --- |\n| x | 1 |\n| y | |\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
