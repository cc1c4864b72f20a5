package operator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"connectrpc.com/vanguard"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// OpenAPI describes the REST side of the contract as an OpenAPI 3.1 document. The
// server serves it at /openapi.json.
//
//go:embed openapi.json
var OpenAPI []byte

// strict is Connect's JSON codec that refuses unknown fields. Otherwise a misspelt
// filter would not filter, and a misspelt dry_run would write.
type strict struct{}

func (strict) Name() string { return "json" }

func (strict) Marshal(m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errors.New("not a proto message")
	}
	return protojson.Marshal(msg)
}

func (strict) Unmarshal(text []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errors.New("not a proto message")
	}
	if len(text) == 0 {
		return errors.New("the body is empty: want a JSON object")
	}
	return protojson.Unmarshal(text, msg)
}

// restCodec is the transcoder's JSON codec. It refuses a body with a field of the path, which the
// path would replace.
type restCodec struct{ *vanguard.JSONCodec }

func (c restCodec) Unmarshal(text []byte, m proto.Message) error {
	if err := c.JSONCodec.Unmarshal(text, m); err != nil {
		return err
	}
	for _, f := range methods[m.ProtoReflect().Descriptor().FullName()].inPath {
		if m.ProtoReflect().Has(f) {
			return fmt.Errorf("field %q "+inPathAlready, f.Name(), "body")
		}
	}
	return nil
}

// transcoder serves the contract in every protocol, and all other paths with rest.
func (s *Server) transcoder(rest http.Handler) (http.Handler, error) {
	opts := []connect.HandlerOption{connect.WithCodec(strict{})} // readBody has bounded the request
	var services []*vanguard.Service
	var names []string
	add := func(path string, h http.Handler) {
		services = append(services, vanguard.NewService(path, h))
		names = append(names, strings.Trim(path, "/"))
	}
	add(operatorv1connect.NewWorkflowServiceHandler(workflowService{s}, opts...))
	add(operatorv1connect.NewWorkerServiceHandler(workerService{s}, opts...))
	add(operatorv1connect.NewProcessServiceHandler(processService{s}, opts...))
	add(operatorv1connect.NewAccessServiceHandler(accessService{s}, opts...))

	reflector := grpcreflect.NewStaticReflector(names...)
	mux := http.NewServeMux()
	small := []connect.HandlerOption{connect.WithReadMaxBytes(viewerBody), connect.WithCodec(strict{})}
	mux.Handle(grpchealth.NewHandler(s.health(names), small...))
	mux.Handle(grpcreflect.NewHandlerV1(reflector, small...))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, small...))
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(OpenAPI)
	})
	s.serveEvents(mux)
	mux.Handle("/", rest)
	coder, err := vanguard.NewTranscoder(services,
		vanguard.WithUnknownHandler(mux),
		vanguard.WithCodec(func(res vanguard.TypeResolver) vanguard.Codec {
			codec := vanguard.NewJSONCodec(res)
			codec.UnmarshalOptions.DiscardUnknown = false
			codec.MarshalOptions.EmitUnpopulated = false
			return restCodec{codec}
		}))
	if err != nil {
		return nil, err
	}
	return explain(coder), nil
}

// health reports the health of the contract's services. A service is not serving
// when the server does not have its area, and while the process drains.
func (s *Server) health(names []string) grpchealth.Checker {
	without := map[string]bool{
		operatorv1connect.WorkflowServiceName: s.cfg.Workflows == nil,
		operatorv1connect.WorkerServiceName:   s.cfg.Workers == nil,
		operatorv1connect.ProcessServiceName:  s.cfg.Processes == nil,
	}
	return checker(func(ctx context.Context, service string) (grpchealth.Status, error) {
		if service != "" && !slices.Contains(names, service) {
			err := Errorf(connect.CodeNotFound, ReasonNotFound, "service", "there is no service %q", clip(service, 128))
			return grpchealth.StatusUnknown, wire(ctx, s.log, "Health.Check", err)
		}
		select {
		case <-lifecycle.Draining(ctx):
			return grpchealth.StatusNotServing, nil
		default:
		}
		if without[service] {
			return grpchealth.StatusNotServing, nil
		}
		return grpchealth.StatusServing, nil
	})
}

type checker func(ctx context.Context, service string) (grpchealth.Status, error)

func (c checker) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	status, err := c(ctx, req.Service)
	return &grpchealth.CheckResponse{Status: status}, err
}

// writeStatus writes err in the form of REST: a google.rpc.Status as JSON.
func writeStatus(w http.ResponseWriter, code int, err error) {
	st := &status.Status{Code: int32(connect.CodeOf(err)), Message: client.Message(err)}
	var ce *connect.Error
	if errors.As(err, &ce) {
		for _, d := range ce.Details() {
			st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
		}
	}
	text, jsonErr := protojson.Marshal(st)
	if jsonErr != nil {
		text = []byte(`{"message":"the error cannot be encoded"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n'))
}

// explain adds to the errors of REST what the transcoder leaves out when it
// cannot read a request: the reason, and the field when its text names one. It adds to the answer
// of each read its entity tag, and answers 304 when the caller has that already.
func explain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case isRPC(r.URL.Path):
			// The transcoder would not recognise Connect without its version header,
			// which curl does not send.
			unversioned := r.Header.Get("Connect-Protocol-Version") == "" && unary(r.Header.Get("Content-Type"))
			if r.Method == http.MethodPost && unversioned {
				r.Header.Set("Connect-Protocol-Version", "1")
			}
			next.ServeHTTP(w, r)
			return
		case r.URL.Path == "/", strings.HasPrefix(r.URL.Path, "/ui/"), strings.HasPrefix(r.URL.Path, "/watch/"):
			next.ServeHTTP(w, r)
			return
		}
		// The transcoder unescapes the parts of the path itself. In a path that is
		// already unescaped it would see other ids.
		escaped := *r.URL
		escaped.Path, escaped.RawPath = r.URL.EscapedPath(), ""
		query := escaped.Query()
		for key := range query {
			if strings.HasSuffix(key, ".") { // it names no field, and the transcoder panics
				var v violations
				v.add(clip(key, maxName), "is no parameter")
				writeStatus(w, http.StatusBadRequest, v.err())
				return
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), queryKey{}, query))
		r.URL = &escaped
		e := &explainer{ResponseWriter: w, isRead: r.Method == http.MethodGet}
		next.ServeHTTP(e, r)
		e.finish(r)
	})
}

// unary reports whether a content type belongs to a unary call of Connect.
func unary(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return media == "application/json" || media == "application/proto"
}

// misread matches the transcoder's errors for a request that it cannot read. Their
// codes would blame the server. Errors of the services have details and are never
// matched.
var misread = regexp.MustCompile(`^(the request is not UTF-8|request should have no body|empty field path|unknown field in field path|proto:|` +
	`in field path |field "|invalid parameter |invalid value|.*unmarshal)`)

// notTime matches the transcoder's error for a parameter that is a message, without its value: all of them
// are times.
var notTime = regexp.MustCompile(`^invalid parameter "([\w.]+)" value for type "message"`)

// notText is the transcoder's error when it quotes a request that is not UTF-8.
const notText = "failed to marshal end error"

type explainer struct {
	http.ResponseWriter
	isRead bool
	code   int // the code of an error, or of a read, that is not written yet, 0 for none
	held   bytes.Buffer
}

func (e *explainer) WriteHeader(code int) {
	if e.code == 0 && (code >= 400 || code == http.StatusOK && e.isRead) {
		e.code = code
		return
	}
	e.ResponseWriter.WriteHeader(code)
}

func (e *explainer) Write(b []byte) (int, error) {
	if e.code == 0 {
		e.WriteHeader(http.StatusOK)
	}
	if e.code == 0 {
		return e.ResponseWriter.Write(b)
	}
	return e.held.Write(b)
}

func (e *explainer) Flush() {
	if e.code == 0 {
		http.NewResponseController(e.ResponseWriter).Flush()
	}
}

// fieldName finds the field in an error of protojson or of the transcoder.
var fieldName = regexp.MustCompile(`(?:unknown field in field path|unknown field|field path|parameter|field)\s+"?([A-Za-z_][\w.]*)"?`)

// answer writes the answer of a read with its entity tag: the revision of an entity, and otherwise
// a hash of the answer. A caller that has it already gets 304 in its place (RFC 9110, section 13.1.2).
func (e *explainer) answer(r *http.Request) {
	h := e.Header()
	if h.Get("ETag") == "" {
		sum := sha256.Sum256(e.held.Bytes())
		h.Set("ETag", `"`+hex.EncodeToString(sum[:12])+`"`)
	}
	for _, list := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(list, ",") {
			if tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/"); tag == "*" || tag == h.Get("ETag") {
				h.Del("Content-Type")
				h.Del("Content-Length")
				e.ResponseWriter.WriteHeader(http.StatusNotModified)
				return
			}
		}
	}
	_, _ = e.ResponseWriter.Write(e.held.Bytes())
}

func (e *explainer) finish(r *http.Request) {
	switch e.code {
	case 0:
		return
	case http.StatusOK:
		e.answer(r)
		return
	}
	var st status.Status
	if err := protojson.Unmarshal(e.held.Bytes(), &st); err != nil || st.GetCode() == 0 {
		st = status.Status{Code: int32(httpcode.Code(e.code)), Message: strings.TrimSpace(e.held.String())}
	}
	if len(st.GetDetails()) > 0 { // a service has made it
		e.Header().Set("Cache-Control", "no-store")
		e.ResponseWriter.WriteHeader(e.code)
		_, _ = e.ResponseWriter.Write(e.held.Bytes())
		return
	}
	code, text, reason := connect.Code(st.GetCode()), st.GetMessage(), ReasonMalformed
	if text == "" {
		text = strings.ToLower(http.StatusText(e.code)) + ": " + r.Method + " " + clip(r.URL.Path, 256)
	}
	if m := notTime.FindStringSubmatch(text); m != nil {
		value := ""
		for name, values := range r.URL.Query() { // a name may be as in JSON: updatedAfter is updated_after
			if strings.EqualFold(strings.ReplaceAll(name, "_", ""), strings.ReplaceAll(m[1], "_", "")) {
				value = values[0]
			}
		}
		text = fmt.Sprintf("invalid parameter %q: it is %q, want a time of RFC 3339, such as 2030-01-31T12:00:00Z",
			m[1], clip(value, 64))
	}
	if text == notText {
		text = "the request is not UTF-8"
	}
	if (code == connect.CodeUnknown || code == connect.CodeInternal) && misread.MatchString(text) {
		code, e.code = connect.CodeInvalidArgument, http.StatusBadRequest
	}
	switch code {
	case connect.CodeNotFound, connect.CodeUnimplemented:
		reason = ReasonNotFound
		text += ": /openapi.json lists what there is"
	case connect.CodeInternal, connect.CodeUnknown:
		reason = ReasonInternal
	}
	var v violations
	if m := fieldName.FindStringSubmatch(text); m != nil && reason == ReasonMalformed {
		v.add(m[1], "%s", text)
	}
	err := withDetails(connect.NewError(code, errors.New(text)), reason, nil, v.details()...)
	writeStatus(e.ResponseWriter, e.code, err)
}

// serveEvents serves the watches as server-sent events. Each has at most one parameter.
func (s *Server) serveEvents(mux *http.ServeMux) {
	serveWatch(s, mux, "GET /watch/workflows/{type}", "id", "ID", workflowService{s}.watch,
		func(r *http.Request, id string) (*operatorv1.WatchRequest, error) {
			return &operatorv1.WatchRequest{Type: r.PathValue("type"), Id: id}, nil
		})
	serveWatch(s, mux, "GET /watch/processes", "id", "ID", processService{s}.watch,
		func(_ *http.Request, id string) (*operatorv1.WatchProcessesRequest, error) {
			return &operatorv1.WatchProcessesRequest{Id: id}, nil
		})
	serveWatch(s, mux, "GET /watch/workers/{id}/logs", "tail", "N", workerService{s}.follow,
		func(r *http.Request, tail string) (*operatorv1.FollowWorkerLogsRequest, error) {
			n, err := strconv.ParseInt(cmp.Or(tail, "0"), 10, 32)
			if err != nil {
				return nil, malformed("tail", "tail is %q, want a number", clip(tail, 64))
			}
			return &operatorv1.FollowWorkerLogsRequest{Id: r.PathValue("id"), Tail: int32(n)}, nil
		})
}

type event interface {
	proto.Message
	GetKind() operatorv1.WatchResponse_Kind
}

// serveWatch serves one watch. It has one parameter, whose value is described by form.
func serveWatch[R any, E event](
	s *Server, mux *http.ServeMux, pattern, parameter, form string,
	watch func(ctx context.Context, req R, send func(E) error) error,
	request func(r *http.Request, value string) (R, error),
) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		value, err := only(r, parameter, parameter+"="+form)
		if err != nil {
			s.writeRefusal(w, r, err)
			return
		}
		req, err := request(r, value)
		if err != nil {
			s.writeRefusal(w, r, err)
			return
		}
		s.sse(w, r, func(send func(string, proto.Message) error) error {
			return watch(r.Context(), req, func(m E) error {
				kind := strings.TrimPrefix(m.GetKind().String(), "KIND_")
				return send(strings.ToLower(kind), m)
			})
		})
	})
}

// only reads the only parameter that a watch has. A misspelt one is an error.
func only(r *http.Request, name, form string) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", malformed("", "the query cannot be read: want %s or none", form)
	}
	for got, values := range query {
		if got != name || len(values) > 1 {
			return "", malformed(clip(got, maxName), "parameter %q: want %s once, or none", clip(got, 64), form)
		}
	}
	return query.Get(name), nil
}

// sse serves one watch as events whose data is the message as JSON. An error before
// the first event is an ordinary response; a later one is the event "error".
func (s *Server) sse(
	w http.ResponseWriter, r *http.Request, watch func(send func(event string, m proto.Message) error) error,
) {
	out := http.NewResponseController(w)
	begun := false
	write := func(event string, data []byte) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx buffers the events
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
			return err
		}
		return out.Flush()
	}
	err := watch(func(event string, m proto.Message) error {
		data, err := protojson.Marshal(m)
		if err != nil {
			return err
		}
		return write(event, data)
	})
	if err == nil || r.Context().Err() != nil {
		return
	}
	if !begun {
		s.writeRefusal(w, r, err)
		return
	}
	data, jsonErr := json.Marshal(map[string]string{
		"code":    connect.CodeOf(err).String(),
		"reason":  client.Reason(err),
		"message": client.Message(err),
	})
	if jsonErr == nil {
		_ = write("error", data) // fails when the caller has gone
	}
}
