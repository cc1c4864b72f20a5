package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// HeaderAsOf is the header of every answer that says from when its content is, as a
// time of RFC 3339. It is older than the answer while a dependency is away.
const HeaderAsOf = "Lifecycle-As-Of"

// needs is the role that each method needs, by "Service.Method". A viewer may
// call the methods that the contract declares free of side effects, except those that
// look into a process.
var needs = func() map[string]Role {
	roles := map[string]Role{}
	for _, file := range operatorv1.Files() {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				roles[action(m)] = RoleOperator
				if o, ok := m.Options().(*descriptorpb.MethodOptions); ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
					roles[action(m)] = RoleViewer
				}
				if looksInto[action(m)] {
					roles[action(m)] = RoleInspector
				}
			}
		}
	}
	return roles
}()

// looksInto are the methods that show what a process has in its memory, its log and its
// configuration.
var looksInto = map[string]bool{"ProcessService.GetLogs": true, "ProcessService.GetStacks": true, "ProcessService.GetConfig": true}

func action(m protoreflect.MethodDescriptor) string {
	return string(m.Parent().Name()) + "." + string(m.Name())
}

// intent describes a call for the audit.
type intent struct {
	target, detail string
	dryRun         bool
	reads, readsOn bool // it is a reading, of which only the begin is in the audit; it says that it goes on

	scope   scope
	of      string // the object: a type of workflow, a worker, a process
	service string // of the process; within fills it in
}

// call does what all methods share: it checks the caller's role and the request, does
// the work within its time limit, and audits what more than a viewer may do.
func call[A proto.Message](ctx context.Context, s *Server, action string, what intent, wrong violations, work func(ctx context.Context, who Principal) (A, error)) (answer A, err error) {
	who, err := s.authorize(ctx, action)
	found := new(string)
	if err == nil {
		if err = wrong.err(); err == nil {
			ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
			answer, err = guarded(ctx, s, action, who, func(ctx context.Context, who Principal) (none A, err error) {
				if err := s.within(ctx, who, action, &what); err != nil {
					return none, err
				}
				ctx = context.WithValue(context.WithValue(ctx, ofKey{}, what.of), foundKey{}, found)
				return work(ctx, who)
			})
			cancel()
		}
	}
	err = wire(ctx, s.log, action, s.deps.explain(err))
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		info.ResponseHeader().Set(HeaderAsOf, s.deps.asOf().UTC().Format(time.RFC3339Nano))
	}
	goesOn := what.reads && err == nil && s.readings.GoesOn(time.Now(), who.Name, what.target) && what.readsOn
	if needs[action] != RoleViewer && !(what.dryRun && previews(ctx)) && !goesOn {
		if made, ok := any(answer).(interface{ GetId() string }); ok && err == nil && strings.HasSuffix(what.target, "/") {
			what.target += made.GetId() // the server chose the id
		}
		what.detail = strings.Join(slices.DeleteFunc([]string{*found, what.detail}, func(s string) bool { return s == "" }), "; ") // a long detail is cut at its end
		s.audit.record(ctx, entry(ctx, who, action, what, err))
	}
	return answer, err
}

// ofKey is the key of the object's own name in the context of a call.
type ofKey struct{}

func objectOf(ctx context.Context) string {
	name, _ := ctx.Value(ofKey{}).(string)
	return name
}

// foundKey is the key of what note has put before the detail of a call's entry in the audit.
type foundKey struct{}

// note puts what only the work of a call can know before the detail of its entry in the
// audit.
func note(ctx context.Context, format string, args ...any) {
	if found, ok := ctx.Value(foundKey{}).(*string); ok {
		*found = fmt.Sprintf(format, args...)
	}
}

type previewKey struct{}

// preview marks the calls of a page that only shows what an action would do: a dry run
// among them is not an attempt to write.
func preview(ctx context.Context) context.Context {
	return context.WithValue(ctx, previewKey{}, true)
}

func previews(ctx context.Context) bool { return ctx.Value(previewKey{}) != nil }

// authorize returns the caller when its role suffices for the action in some part of the
// fleet; within says whether it does at the object of a call.
func (s *Server) authorize(ctx context.Context, action string) (Principal, error) {
	who, ok := PrincipalFrom(ctx)
	need, known := needs[action]
	switch {
	case !ok:
		return who, Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "", "the request has no authenticated caller")
	case known && who.most().atLeast(need):
		return who, nil
	}
	return who, Errorf(connect.CodePermissionDenied, ReasonForbidden, "", "%s has the role %s: %s needs the role %s", who.Name, who.most(), action, cmp.Or(need, RoleOperator))
}

// guarded turns a panic into an error.
func guarded[A any](ctx context.Context, s *Server, action string, who Principal, work func(context.Context, Principal) (A, error)) (answer A, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "operator: panic", "action", action, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return work(ctx, who)
}

func entry(ctx context.Context, who Principal, action string, what intent, err error) *operatorv1.AuditEntry {
	e := &operatorv1.AuditEntry{
		Who: who.Name, Role: string(who.most()), Method: who.Method, Remote: remoteFrom(ctx), Service: what.service,
		Action: action, Target: clip(what.target, 1024), Detail: clip(what.detail, 1024), DryRun: what.dryRun, Outcome: "ok",
	}
	if err != nil {
		e.Outcome = clip(connect.CodeOf(err).String()+": "+message(err), 1024)
	}
	return e
}

// message returns the text of an error without its code.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

// clip returns s as valid UTF-8 of at most n bytes.
func clip(s string, n int) string { return text.Clip(s, n) }

// Limits of the fields of requests, in bytes unless noted.
const (
	maxName   = 256
	maxNote   = 2048
	maxPath   = 1024
	maxFields = 100 // in number
)

// text checks a name: at most most bytes, without control characters.
func (v *violations) text(field, value string, required bool, most int) {
	switch {
	case required && value == "":
		v.add(field, "is missing")
	case len(value) > most:
		v.add(field, "has %d bytes, at most %d are allowed", len(value), most)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }):
		v.add(field, "has a control character")
	}
}

// size checks a page size and returns it, or its default.
func (v *violations) size(field string, n int32) int {
	switch {
	case n < 0 || n > 1000:
		v.add(field, "is %d, want 1 to 1000, or 0 for 50", n)
	case n == 0:
		return 50
	}
	return int(n)
}

// time checks a moment and returns it; nil is the zero time.
func (v *violations) time(field string, at *timestamppb.Timestamp) time.Time {
	switch {
	case at == nil:
		return time.Time{}
	case at.CheckValid() != nil:
		v.add(field, "is not a time: %v", at.CheckValid())
	}
	return at.AsTime()
}

// revision reads an entity tag: a revision, quoted as in HTTP or bare. When the field
// is empty it reads the header If-Match. "*" is any revision.
func (v *violations) revision(ctx context.Context, tag string) uint64 {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && tag == "" {
		tag = strings.TrimSpace(info.RequestHeader().Get("If-Match"))
	}
	if tag == "" || tag == "*" {
		return 0
	}
	bare := tag
	if len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		bare = tag[1 : len(tag)-1]
	}
	n, err := strconv.ParseUint(bare, 10, 64)
	if err != nil || n == 0 {
		v.add("if_match", "is %q, want the etag of an entity, such as %q", clip(tag, 64), ETag(12))
	}
	return n
}

// ETag returns a revision as an HTTP entity tag.
func ETag(revision uint64) string { return `"` + strconv.FormatUint(revision, 10) + `"` }
