package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// needs is the role that each method needs, by "Service.Method". A viewer may
// call the methods that the contract declares free of side effects, except methods that
// look into a process. methods are the methods by their request messages: each has its own.
var needs, methods = methodsOf(operatorv1.Files())

func methodsOf(files []protoreflect.FileDescriptor) (map[string]Role, map[protoreflect.FullName]method) {
	roles, byRequest := map[string]Role{}, map[protoreflect.FullName]method{}
	for _, file := range files {
		for i := range file.Services().Len() {
			all := file.Services().Get(i).Methods()
			for j := range all.Len() {
				m := all.Get(j)
				name := string(m.Parent().Name()) + "." + string(m.Name())
				options, _ := m.Options().(*descriptorpb.MethodOptions)
				switch {
				case looksInto[name]:
					roles[name] = RoleInspector
				case options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
					roles[name] = RoleViewer
				default:
					roles[name] = RoleOperator
				}
				fields := m.Input().Fields()
				of := cmp.Or(fields.ByName("type"), fields.ByName("worker_id"), fields.ByName("id"))
				byRequest[m.Input().FullName()] = method{name, of, fields.ByName("id"), pathFields(m)}
			}
		}
	}
	return roles, byRequest
}

// method is what a request message says about its call.
type method struct {
	action string
	// of is the field with the type of workflow, the worker or the process that the call is about,
	// and id the field with its id, or with that of the entity or the dead letter; nil for none.
	of, id protoreflect.FieldDescriptor
	inPath []protoreflect.FieldDescriptor // the fields that the path of REST has
}

var pathVariable = regexp.MustCompile(`\{(\w+)\}`)

func pathFields(m protoreflect.MethodDescriptor) (fields []protoreflect.FieldDescriptor) {
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	path := cmp.Or(rule.GetGet(), rule.GetPost(), rule.GetPatch(), rule.GetDelete())
	for _, found := range pathVariable.FindAllStringSubmatch(path, -1) {
		fields = append(fields, m.Input().Fields().ByName(protoreflect.Name(found[1])))
	}
	return fields
}

// optionalID are the methods whose id may be empty: it is made up, or it is a filter.
var optionalID = map[string]bool{
	"WorkerService.CreateWorker":    true,
	"ProcessService.WatchProcesses": true,
	"WorkflowService.Watch":         true,
}

// looksInto are the methods that show what a process has in its memory, its log and its
// configuration.
var looksInto = map[string]bool{
	"ProcessService.GetLogs":   true,
	"ProcessService.GetStacks": true,
	"ProcessService.GetConfig": true,
}

// request is one call of a method: what it does, for the checks and the audit.
type request struct {
	action string // "Service.Method"
	scope  scope
	object string // the type of workflow, the worker or the process that it is about
	target string // the same, for the audit
	detail string
	dryRun bool
	inPath []protoreflect.FieldDescriptor // the fields that the path of REST has
	// letters marks a method about dead letters, whose object may also be a hook: see Letters.
	letters bool
	// inSeries marks a call that may be one of a series, such as following a log: the audit has
	// only the first of a series. continuesSeries says that this call may continue one.
	inSeries, continuesSeries bool

	violations // what is wrong with its fields

	who     Principal           // the caller, once it is authorized
	at      object              // what resolve found: where a caller without a role in the fleet needs one
	process *operatorv1.Process // the object of a method of ProcessService with scopeOne
	area    Letters             // of a method about dead letters
	found   string              // the text of note, which stands before the detail
}

// requestOf describes the call of a request message, and checks all texts of the message.
func requestOf(message proto.Message) *request {
	m := message.ProtoReflect()
	is := methods[m.Descriptor().FullName()]
	c := &request{action: is.action, scope: scopeParts, inPath: is.inPath}
	c.texts("", m)
	if is.of == nil {
		return c
	}
	c.scope, c.object, c.letters = scopeOne, m.Get(is.of).String(), is.of.Name() == "worker_id"
	service, _, _ := strings.Cut(is.action, ".")
	switch {
	case service == "ProcessService":
		c.target = "process/" + c.object
	case service == "WorkflowService" && is.id != nil:
		c.target = c.object + "/" + m.Get(is.id).String()
	case service == "WorkerService" && c.letters && isHook(c.object):
		c.target = "hook/" + c.object
	case service == "WorkerService":
		c.target = "worker/" + c.object
	}
	for _, field := range slices.Compact([]protoreflect.FieldDescriptor{is.of, is.id}) {
		if field != nil && (field != is.id || !optionalID[is.action]) {
			c.required(string(field.Name()), m.Get(field).String())
		}
	}
	return c
}

type queryKey struct{}

// query refuses a key of the query of REST that names a field of the path: the transcoder would
// replace what the path says, and the call would be about another object.
func (c *request) query(ctx context.Context) {
	query, _ := ctx.Value(queryKey{}).(url.Values)
	for _, f := range c.inPath {
		if query.Has(string(f.Name())) || query.Has(f.JSONName()) {
			c.add(string(f.Name()), inPathAlready, "query")
		}
	}
}

// inPathAlready is what is wrong with a field of the path that the query or the body has too.
const inPathAlready = "is in the path: leave it out of the %s"

// note records a finding of the work, for the audit. It stands before the detail, because a long
// detail is cut at its end.
func (c *request) note(format string, args ...any) { c.found = fmt.Sprintf(format, args...) }

// call is the part that all methods share: it checks the caller's role and the request, does
// the work within its time limit, and audits a method that a viewer may not call.
func call[A proto.Message](
	ctx context.Context, s *Server, c *request, work func(ctx context.Context) (A, error),
) (answer A, err error) {
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	answer, err = guarded(within, s, c.action, func(ctx context.Context) (none A, err error) {
		if err := s.begin(ctx, c); err != nil {
			return none, err
		}
		return work(ctx)
	})
	cancel()
	err = s.failure(ctx, c.action, err)
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		s.deps.sayAway(info.ResponseHeader())
	}
	goesOn := false
	if c.inSeries && err == nil {
		isNoted := s.readings.Note(time.Now(), c.who.id(), c.target)
		goesOn = isNoted && c.continuesSeries
	}
	isPreview := c.dryRun && ctx.Value(previewKey{}) != nil
	if needs[c.action] != RoleViewer && !isPreview && !goesOn {
		lacksID := strings.HasSuffix(c.target, "/") // the server chose the id
		if made, ok := any(answer).(interface{ GetId() string }); ok && err == nil && lacksID {
			c.target += made.GetId()
		}
		s.audit.record(ctx, c.entry(ctx, err))
	}
	return answer, err
}

// begin authorizes the caller, and checks the request.
func (s *Server) begin(ctx context.Context, c *request) (err error) {
	if c.who, err = s.authorize(ctx, c.action); err != nil {
		return err
	}
	c.query(ctx)
	if err := c.violations.err(); err != nil {
		return err
	}
	if err := s.served(c); err != nil {
		return err
	}
	if err := s.resolve(ctx, c); err != nil {
		return err
	}
	if c.scope == scopeParts {
		return nil
	}
	return s.permit(c.who, c.action, c.at)
}

// served returns an error unless the server has the area of a request.
func (s *Server) served(c *request) error {
	if c.letters {
		var err error
		c.area, err = s.letters(c.object)
		return err
	}
	action := c.action
	switch service, _, _ := strings.Cut(action, "."); {
	case service == "WorkflowService" && s.cfg.Workflows == nil:
		return notServed("workflows")
	case service == "WorkerService" && s.cfg.Workers == nil:
		return notServed("hosted workers")
	case service == "ProcessService" && s.cfg.Processes == nil && action != "ProcessService.Diagnose":
		return notServed("processes")
	}
	return nil
}

func notServed(area string) error {
	return Errorf(connect.CodeUnimplemented, ReasonNotServed, "",
		"this server has no %s: it was started without them", area)
}

// failure returns the error that the caller gets for err.
func (s *Server) failure(ctx context.Context, action string, err error) error {
	return wire(ctx, s.log, action, s.deps.explain(err))
}

type previewKey struct{}

// preview marks the calls of a page that only shows what an action would do. A dry run among them
// does not count as an attempt to write.
func preview(ctx context.Context) context.Context {
	return context.WithValue(ctx, previewKey{}, true)
}

// authorize returns the caller when its role suffices for the action in some part of the
// fleet; permit says whether it does at the object of a request.
func (s *Server) authorize(ctx context.Context, action string) (Principal, error) {
	who, ok := PrincipalFrom(ctx)
	need, known := needs[action]
	switch {
	case !ok:
		return who, Errorf(connect.CodeUnauthenticated, ReasonUnauthenticated, "", "the request has no authenticated caller")
	case known && who.most().atLeast(need):
		return who, nil
	}
	return who, forbidden("%s has the role %s: %s needs the role %s",
		who.Name, who.most(), action, cmp.Or(need, RoleOperator))
}

// guarded turns a panic into an error.
func guarded[A any](
	ctx context.Context, s *Server, action string, work func(context.Context) (A, error),
) (answer A, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "operator: panic", "action", action, "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return work(ctx)
}

// entry returns the entry of the audit for a request that has ended with err.
func (c *request) entry(ctx context.Context, err error) *operatorv1.AuditEntry {
	detail := strings.Join(slices.DeleteFunc([]string{c.found, c.detail}, func(s string) bool { return s == "" }), "; ")
	e := &operatorv1.AuditEntry{
		Who:     c.who.Name,
		Role:    string(c.who.most()),
		Method:  c.who.Method,
		Remote:  remoteFrom(ctx),
		Service: c.process.GetService(),
		Action:  c.action,
		Target:  clip(c.target, 1024),
		Detail:  clip(detail, 1024),
		DryRun:  c.dryRun,
		Outcome: "ok",
	}
	if err != nil {
		e.Outcome = clip(connect.CodeOf(err).String()+": "+client.Message(err), 1024)
	}
	return e
}

// clip returns s as valid UTF-8 of at most n bytes.
func clip(s string, n int) string { return text.Clip(s, n) }

// Limits of texts.
const (
	maxText  = 2048 // bytes of a text of a request
	maxTexts = 1000 // texts of a list
	maxName  = 256  // bytes of a name, and of what an error repeats
)

// texts checks every text of a message and of the contract's messages in it: it has at most maxText
// bytes, and no control characters.
func (v *violations) texts(path string, m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		name := path + string(f.Name())
		switch {
		case !m.Has(f):
		case f.Kind() == protoreflect.StringKind && f.IsList():
			var list []string
			for j := range m.Get(f).List().Len() {
				list = append(list, m.Get(f).List().Get(j).String())
			}
			v.list(name, list)
		case f.Kind() == protoreflect.StringKind:
			v.text(name, m.Get(f).String())
		case f.Kind() == protoreflect.MessageKind && !f.IsList() && !f.IsMap() && f.ParentFile().Package() == f.Message().ParentFile().Package():
			v.texts(name+".", m.Get(f).Message())
		}
	}
}

func (v *violations) text(field, value string) {
	switch {
	case len(value) > maxText:
		v.add(field, "has %d bytes, at most %d are allowed", len(value), maxText)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }):
		v.add(field, "has a control character")
	}
}

// list checks a list of texts. One that is wrong is enough to report.
func (v *violations) list(field string, list []string) {
	if len(list) > maxTexts {
		v.add(field, "has %d texts, at most %d are allowed", len(list), maxTexts)
		return
	}
	before := len(*v)
	for i, text := range list {
		if v.text(fmt.Sprintf("%s[%d]", field, i), text); len(*v) > before {
			return
		}
	}
}

// maxReason is the length of a reason that a process takes.
const maxReason = 256

func (v *violations) reason(value string) {
	if len(value) > maxReason {
		v.add("reason", "has %d bytes, at most %d are allowed", len(value), maxReason)
	}
}

// required checks that a text is there.
func (v *violations) required(field, value string) {
	if value == "" {
		v.add(field, "is missing")
	}
}

// oneOf checks a filter whose values are a fixed set, in capitals or not: another one would
// select nothing.
func oneOf[S ~string](v *violations, field, value string, values []S) {
	isIt := func(s S) bool { return strings.EqualFold(string(s), value) }
	if value != "" && !slices.ContainsFunc(values, isIt) {
		v.add(field, "is %q, want one of %s", clip(value, 64), strings.Trim(fmt.Sprint(values), "[]"))
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
// is empty it reads the header If-Match; the two must not differ. "*" is any revision.
func (v *violations) revision(ctx context.Context, tag string) uint64 {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		header := strings.TrimSpace(info.RequestHeader().Get("If-Match"))
		if header != "" && tag != "" && strings.Trim(header, `"`) != strings.Trim(tag, `"`) {
			v.add("if_match", "is %q and the header If-Match is %q: want one of the two", clip(tag, 64), clip(header, 64))
			return 0
		}
		tag = cmp.Or(tag, header)
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
