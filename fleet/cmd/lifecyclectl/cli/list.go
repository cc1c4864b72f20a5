package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
)

// All asks for every page of a list, and returns one answer with the items of all of them, at
// most limit unless it is 0.
func All[Q proto.Message, A pages](
	ctx context.Context, limit int, req Q, page func(context.Context, Q) (A, error),
) (all A, err error) {
	return readPages(ctx, limit, req, page, func(proto.Message) bool { return false })
}

// NewestFirst returns a function that reads a list to which the server only adds, and which it
// gives newest first. The first call returns at most limit items, the newest, unless limit is 0;
// each later one those that came since, however many. All return them oldest first. One goroutine
// at a time may call it.
func NewestFirst[Q proto.Message, A pages, M proto.Message](
	page func(context.Context, Q) (A, error), key func(M) string,
) func(ctx context.Context, limit int, req Q) (A, error) {
	hasRead, last := false, ""
	isKnown := func(item proto.Message) bool {
		m, _ := item.(M)
		return hasRead && key(m) == last
	}
	return func(ctx context.Context, limit int, req Q) (A, error) {
		if hasRead {
			limit = 0
		}
		answer, err := readPages(ctx, limit, req, page, isKnown)
		if err != nil {
			return answer, err
		}
		items := listOf(answer)
		for i, j := 0, items.Len()-1; i < j; i, j = i+1, j-1 {
			first, other := items.Get(i), items.Get(j)
			items.Set(i, other)
			items.Set(j, first)
		}
		if n := items.Len(); n > 0 {
			m, _ := items.Get(n - 1).Message().Interface().(M)
			last = key(m)
		}
		hasRead = true
		return answer, nil
	}
}

// pages is an answer with one page of a list.
type pages interface {
	proto.Message
	GetNextPageToken() string
}

// readPages is All up to the first item for which isKnown is true, without that item.
func readPages[Q proto.Message, A pages](
	ctx context.Context, limit int, req Q, page func(context.Context, Q) (A, error), isKnown func(proto.Message) bool,
) (all A, err error) {
	if limit < 0 {
		return all, fmt.Errorf("--limit is %d, want 0 for all or more", limit)
	}
	set := func(m protoreflect.Message, name protoreflect.Name, v any) {
		m.Set(m.Descriptor().Fields().ByName(name), protoreflect.ValueOf(v))
	}
	set(req.ProtoReflect(), "page_token", "")
	var none A
	var items protoreflect.List
	for have := 0; ; have = items.Len() {
		size := 1000
		if limit > 0 {
			size = min(size, limit-have)
		}
		set(req.ProtoReflect(), "page_size", int32(size))
		answer, err := page(ctx, req)
		if err != nil {
			return none, err
		}
		next, more := answer.GetNextPageToken(), listOf(answer)
		for i := range more.Len() {
			if isKnown(more.Get(i).Message().Interface()) {
				more.Truncate(i)
				next = ""
				break
			}
		}
		if items == nil {
			all, items = answer, more
			set(all.ProtoReflect(), "next_page_token", "")
		} else {
			for i := range more.Len() {
				items.Append(more.Get(i))
			}
		}
		if next == "" || limit > 0 && items.Len() >= limit {
			return all, nil
		}
		set(req.ProtoReflect(), "page_token", next)
	}
}

// listOf returns the list of an answer, which is its first field.
func listOf(answer proto.Message) protoreflect.List {
	m := answer.ProtoReflect()
	return m.Mutable(m.Descriptor().Fields().Get(0)).List()
}

// WatchFlag adds --watch to a list that the command looks at again and again.
func WatchFlag(cmd *cobra.Command, watch *bool) {
	cmd.Flags().BoolVarP(watch, "watch", "w", false, "then show what has changed, every 2 s")
}

// List is a list that a command shows once, or with --watch again and again.
type List[M proto.Message] struct {
	Head   []string
	Widths []int // the least widths of the columns, with --watch
	Cells  func(M) []any

	Look   func(context.Context) (proto.Message, error) // the answer, whose first field is the list
	Before func(*output.Table)                          // adds rows above the items, without --watch; may be nil

	Key     func(M) string    // of an item, for as long as it is in the list
	Same    func(a, b M) bool // whether b shows nothing that a does not; proto.Equal when nil
	OnlyNew bool              // with --watch: an item that is not listed any more is merely old
	Plain   bool              // with --watch: items are shown as they are, and not as changes
}

// Show shows the list, or watches it.
func (l List[M]) Show(c *Call, watch bool) error {
	if watch {
		return l.watch(c)
	}
	answer, err := l.Look(c.Context())
	return c.Answer(answer, err, func(t *output.Table) {
		t.Head(l.Head...)
		if l.Before != nil {
			l.Before(t)
		}
		for _, m := range l.items(answer) {
			t.Row(l.Cells(m)...)
		}
	})
}

func (l List[M]) items(answer proto.Message) (items []M) {
	for i, list := 0, listOf(answer); i < list.Len(); i++ {
		m, _ := list.Get(i).Message().Interface().(M)
		items = append(items, m)
	}
	return items
}

// watch shows the list and then what has changed, at each look.
func (l List[M]) watch(c *Call) error {
	out := c.Rows(append([]string{"SEEN"}, l.Head...), append([]int{20}, l.Widths...)...)
	if l.Plain {
		out = c.Rows(l.Head, l.Widths...)
	}
	if err := out.Begin(); err != nil {
		return err
	}
	show := func(kind string, m M, cells ...any) error {
		if c.Format.IsNames() || l.Plain {
			return out.Add(m, cells...)
		}
		item, err := changeOf(kind, m)
		if err != nil {
			return err
		}
		return out.Add(item, append([]any{time.Now().UTC().Format(time.RFC3339)}, cells...)...)
	}
	seen := Changes[M]{
		Key:  l.Key,
		Same: l.Same,
		Put:  func(m M) error { return show("KIND_PUT", m, l.Cells(m)...) },
		Gone: func(key string, last M) error {
			if l.OnlyNew {
				return nil
			}
			return show("KIND_DELETED", last, key, output.Faint("(gone)"))
		},
	}
	if seen.Same == nil {
		seen.Same = func(a, b M) bool { return proto.Equal(a, b) }
	}
	return Watch(c, l.Look, func(answer proto.Message) error { return seen.Take(l.items(answer)) })
}

// changeOf returns a change in the JSON form that every watch prints: its kind and the item.
func changeOf(kind string, m proto.Message) (*structpb.Struct, error) {
	text, err := output.JSON(m, "")
	if err != nil {
		return nil, err
	}
	item := new(structpb.Value)
	if err := json.Unmarshal(text, item); err != nil {
		return nil, fmt.Errorf("write as JSON: %w", err)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue(kind), "item": item}}, nil
}

// Term is one part of a selector: a key has a value, or does not have it.
type Term struct {
	Key, Value string
	Not        bool
}

// ParseSelector reads KEY=VALUE and KEY!=VALUE with commas between them.
func ParseSelector(text string) (list []Term, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(one, "=")
		key, not := strings.CutSuffix(key, "!")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, fmt.Errorf("--selector has %q: want KEY=VALUE or KEY!=VALUE, with commas between them", one)
		}
		list = append(list, Term{key, strings.TrimSpace(strings.TrimPrefix(value, "=")), not})
	}
	return list, nil
}

// ForEach does something with each object of a selector, one after the other, and shows the
// results. One that fails does not stop the others; the error then says "2 of 5" and why,
// such as "entities were not moved".
func ForEach[T interface{ GetId() string }](c *Call, list []T, why string, do func(T) (proto.Message, output.Cell, error)) error {
	out := c.Rows([]string{"ID", "RESULT"}, 28, 10)
	failed := 0
	for _, one := range list {
		answer, result, err := do(one)
		if c.Context().Err() != nil {
			return context.Canceled
		}
		if err != nil {
			failed++
			result = output.Bad(client.Message(err))
		}
		if c.Format.IsTable() || err == nil {
			if err := out.Add(answer, one.GetId(), result); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		return Fail(ExitFindings, "%d of %d %s", failed, len(list), why)
	}
	return nil
}
