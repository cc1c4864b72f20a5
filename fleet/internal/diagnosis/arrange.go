package diagnosis

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Bounds of what Arrange does.
const (
	groupFrom    = 3                // findings of one kind about processes of one service are one
	maxSubjects  = 20               // that a group has
	namedOfGroup = 3                // that its cause names
	maxExplained = 20               // findings that another one lists below it
	foldBefore   = 30 * time.Second // a probe may fail before the server notices an outage
	foldAfter    = 10 * time.Minute // what begins later was not caused by a store that was replaced
)

// roots are the rules about what all else depends on, by how much that is.
var roots = map[string]int{"dependency-away": 3, "store-refuses-writes": 2, "store-replaced": 1}

// caused are the rules whose findings such a root may explain.
var caused = []string{
	"probe-down", "probe-slow", "unit-failed", "crash-loop", "start-blocked", "process-failed", "worker-failed", "consumer-stalled", "backlog-grows",
}

// row is a finding while it is arranged.
type row struct {
	*operatorv1.Finding
	newest time.Time // when it became wrong, or the last one of a group did
}

// Arrange puts findings into the form in which a person needs them. The same finding about three
// processes of a service or more is one. A finding that another one explains is below that. The
// worst are first, of equal ones causes before what they explain, and then the newest. service
// returns the service of a process, and how many of its processes live when this one does.
func Arrange(list []*operatorv1.Finding, service func(id string) (name string, living int)) []*operatorv1.Finding {
	rows := fold(group(list, service))
	slices.SortStableFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.GetSeverity(), b.GetSeverity()), cmp.Compare(roots[b.GetRule()], roots[a.GetRule()]), b.newest.Compare(a.newest))
	})
	out := make([]*operatorv1.Finding, len(rows))
	for i, r := range rows {
		out[i] = r.Finding
	}
	return out
}

// numbers matches what differs between causes of one kind.
var numbers = regexp.MustCompile(`[0-9][0-9A-Za-z.:µ-]*`)

// group makes one finding of those that say the same of processes of one service.
func group(list []*operatorv1.Finding, service func(id string) (string, int)) (rows []*row) {
	type kind struct{ rule, service, cause string }
	kinds := map[kind][]*operatorv1.Finding{}
	var order []kind
	for _, f := range list {
		k := kind{rule: f.GetRule(), service: f.GetSubject(), cause: f.GetCause()}
		if id, ok := strings.CutPrefix(f.GetSubject(), "process/"); ok {
			_, instance, _ := strings.Cut(id, ".")
			k.service, _ = service(id)
			k.cause = strings.ReplaceAll(f.GetCause(), id, "#")
			if instance != "" {
				k.cause = strings.ReplaceAll(k.cause, instance, "#")
			}
			k.cause = numbers.ReplaceAllString(k.cause, "#")
		}
		if kinds[k] == nil {
			order = append(order, k)
		}
		kinds[k] = append(kinds[k], f)
	}
	for _, k := range order {
		all := kinds[k]
		if len(all) < groupFrom {
			for _, f := range all {
				rows = append(rows, &row{f, f.GetSince().AsTime()})
			}
			continue
		}
		rows = append(rows, grouped(all, k.service, service))
	}
	return rows
}

// grouped returns one finding for several about processes of a service.
func grouped(all []*operatorv1.Finding, name string, service func(id string) (string, int)) *row {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *operatorv1.Finding) int { return b.GetSince().AsTime().Compare(a.GetSince().AsTime()) })
	newest, oldest := all[0], all[len(all)-1]
	f := proto.CloneOf(newest)
	f.Since, f.Count = oldest.GetSince(), int64(len(all))
	f.Subject, f.Subjects = "service/"+name, nil
	of := ""
	if _, living := service(processID(newest)); living >= len(all) {
		of = fmt.Sprintf(" of %d", living)
	}
	var names []string
	for i, x := range all[:min(len(all), maxSubjects)] {
		f.Subjects = append(f.Subjects, x.GetSubject())
		if i < namedOfGroup {
			names = append(names, processID(x))
		}
	}
	such := ""
	if len(all) > namedOfGroup {
		such = "such as "
	}
	f.Cause = fmt.Sprintf("%d%s processes (%s%s): %s", len(all), of, such, strings.Join(names, ", "), newest.GetCause())
	return &row{f, newest.GetSince().AsTime()}
}

func processID(f *operatorv1.Finding) string { return strings.TrimPrefix(f.GetSubject(), "process/") }

// fold puts findings below those that explain them.
func fold(rows []*row) []*row {
	isBelow := map[*row]bool{}
	for _, root := range rows {
		if isBelow[root] || !isCause(root) {
			continue
		}
		for _, r := range rows {
			if r == root || isBelow[r] || len(r.GetExplains()) > 0 || !explains(root, r) {
				continue
			}
			if len(root.GetExplains()) == 0 && root.GetExplained() == 0 {
				root.Finding = proto.CloneOf(root.Finding) // the diagnosis is shared
			}
			isBelow[r] = true
			if root.Explained++; len(root.GetExplains()) < maxExplained {
				root.Explains = append(root.Explains, r.Finding)
			}
		}
	}
	return slices.DeleteFunc(rows, func(r *row) bool { return isBelow[r] })
}

// isCause reports whether a finding explains others: few of many do.
func isCause(r *row) bool {
	rule := r.GetRule()
	return roots[rule] > 0 || rule == "worker-ignores-stop" || isCrashLoop(r)
}

func isCrashLoop(r *row) bool {
	return r.GetRule() == "crash-loop" && strings.HasPrefix(r.GetSubject(), "service/")
}

// explains reports whether a finding is the cause of another.
func explains(root, r *row) bool {
	since := root.GetSince().AsTime()
	switch rule := root.GetRule(); {
	case roots[r.GetRule()] > 0:
		return false
	case roots[rule] > 0:
		isNear := r.GetSince() != nil && !r.newest.Before(since.Add(-foldBefore))
		isPart := strings.HasPrefix(root.GetCause(), lostPart) // of the store: it explains what names it, not all
		isOver := rule == "store-replaced" && (isPart || r.newest.After(since.Add(foldAfter)))
		return isNear && !isOver && slices.Contains(caused, r.GetRule())
	case isCrashLoop(root):
		isEnd := r.GetRule() == "process-failed" || r.GetRule() == "process-lost"
		return isEnd && r.GetSubject() == root.GetSubject()
	case rule == "worker-ignores-stop":
		ends := []string{"stop-hung", "grace-too-short", "process-failed"}
		return slices.Contains(ends, r.GetRule()) && r.GetSubject() == root.GetSubject()
	}
	return false
}
