package output

import (
	"bytes"
	"testing"
)

func TestRowsKeepTheirColumns(t *testing.T) {
	var b bytes.Buffer
	r := &Rows{W: &b, Format: new(Format), Head: []string{"ID", "PHASE"}, Widths: []int{6, 4}}
	for _, id := range []string{"a", "日本", "much-too-long"} {
		if err := r.Add(nil, id, State("failed")); err != nil {
			t.Fatal(err)
		}
	}
	if want := "ID      PHASE\na       failed\n日本    failed\nmuch-too-long  failed\n"; b.String() != want {
		t.Errorf("got\n%s, want\n%s", b.String(), want)
	}
}
