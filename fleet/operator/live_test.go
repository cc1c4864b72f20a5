package operator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// moody is a Workers whose List panics first, then fails, then returns another
// list with every call.
type moody struct {
	operator.Workers
	calls atomic.Int64
}

func (m *moody) List(context.Context) ([]*operatorv1.Worker, error) {
	switch n := m.calls.Add(1); n {
	case 1:
		panic("a defect")
	case 2:
		return nil, errors.New("a failure")
	default:
		return []*operatorv1.Worker{{Id: "w", Backlog: n}}, nil
	}
}

// A live page survives an area that panics and fails. It is notified once when it
// is ready, and then of each change. The server polls the area once for all open
// pages.
func TestLivePagesOutliveAnAreaThatFails(t *testing.T) {
	m := &moody{}
	base, _ := serve(t, operator.Config{Workers: m})
	events := func() (next func() string) {
		resp, err := http.Get(base + "/ui/live?topic=workers")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Fatalf("it is %s", got)
		}
		lines := bufio.NewScanner(resp.Body)
		return func() string {
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data:") || strings.HasPrefix(lines.Text(), "event:") {
					return lines.Text()
				}
			}
			return fmt.Sprint("over: ", lines.Err())
		}
	}
	var pages []func() string
	for range 20 {
		pages = append(pages, events())
	}
	for i, next := range pages {
		for range 2 {
			if got := next(); got != "data: changed" {
				t.Fatalf("page %d is notified of %q", i, got)
			}
		}
	}
	// Two looks that failed, the first that succeeded, and those after it.
	if n := m.calls.Load(); n > 20 {
		t.Errorf("20 pages made %d looks", n)
	}
}

// crowd is a Processes with many processes.
type crowd struct {
	operator.Processes
	n int
}

func (c crowd) List(context.Context) ([]*operatorv1.Process, error) {
	list := make([]*operatorv1.Process, c.n)
	for i := range list {
		list[i] = &operatorv1.Process{Id: fmt.Sprintf("p-%05d", i), Service: []string{"gateway", "missions"}[i%2], Phase: "running", Ready: true, StartedAt: timestamppb.Now()}
	}
	return list, nil
}

func (crowd) Watch(ctx context.Context, to operator.Sink[*operatorv1.Process]) error {
	to.Sync()
	<-ctx.Done()
	return ctx.Err()
}

// A page of a large fleet shows a hundred processes and counts all. The
// pages together show each once, also those of one service.
func TestProcessesHavePages(t *testing.T) {
	base, _ := serve(t, operator.Config{Processes: crowd{n: 2000}, Rate: 1e6})
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
