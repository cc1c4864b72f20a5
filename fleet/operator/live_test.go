package operator_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// crowd returns n processes of two services.
func crowd(n int) (list []*operatorv1.Process) {
	for i := range n {
		list = append(list, &operatorv1.Process{
			Id: fmt.Sprintf("p-%05d", i), Service: []string{"gateway", "missions"}[i%2], Phase: "running", Ready: true, StartedAt: timestamppb.Now(),
		})
	}
	return list
}

// A page of a large fleet shows a hundred processes and counts all. The
// pages together show each once, also those of one service.
func TestProcessesHavePages(t *testing.T) {
	base, _ := serve(t, operator.Config{Processes: announced{list: crowd(2000)}, Rate: 1e6})
	row, next := regexp.MustCompile(`<tr data-key="(p-\d+)">`), regexp.MustCompile(`href="([^"]+)">Next page`)
	for path, want := range map[string]int{"/ui/": 2000, "/ui/?service=missions": 1000, "/ui/?service=none": 0} {
		seen, pages := map[string]bool{}, 0
		for at := path; at != ""; pages++ {
			code, _, text := request(t, "GET", base+at, "")
			if code != 200 || pages > 100 {
				t.Fatalf("%s: %d after %d pages", at, code, pages)
			}
			rows := row.FindAllStringSubmatch(text, -1)
			if len(rows) > 100 {
				t.Fatalf("%s shows %d", at, len(rows))
			}
			for _, r := range rows {
				if seen[r[1]] {
					t.Fatalf("%s shows %s again", at, r[1])
				}
				seen[r[1]] = true
			}
			at = ""
			if m := next.FindStringSubmatch(text); m != nil {
				at = strings.ReplaceAll(m[1], "&amp;", "&")
			}
		}
		if len(seen) != want || want > 0 && pages != want/100 {
			t.Errorf("%s: %d processes on %d pages, want %d", path, len(seen), pages, want)
		}
	}
}
