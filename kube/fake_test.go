package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// fakeAPI is an API server in memory, for the faults that a real one does not have on
// demand.
type fakeAPI struct {
	mu       sync.Mutex // guards the fields below
	version  int
	objects  map[string]map[string]any // by path
	history  []fakeEvent
	changed  chan struct{} // closed and replaced with every change
	oldest   int           // a watch from an older version gets 410
	token    string
	requests []string
	// fault may answer a request in place of the server: it returns true when it has.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// after runs when a write is done and before it is answered.
	after func(r *http.Request)
}

type fakeEvent struct {
	version int
	path    string
	Type    string         `json:"type"`
	Object  map[string]any `json:"object"`
}

func newFake() *fakeAPI {
	return &fakeAPI{objects: map[string]map[string]any{}, changed: make(chan struct{})}
}

// client returns a client of the fake API server, for the pod demo/web-1, and what it
// logs. Both end with the test.
func (f *fakeAPI) client(t *testing.T, change ...func(*Config)) (*Client, *logLines) {
	t.Helper()
	ln := lifecycletest.NewListener()
	srv := &http.Server{Handler: f}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	lines := new(logLines)
	cfg := Config{Host: "http://api", Namespace: "demo", Pod: "web-1", Token: "secret", Logger: slog.New(slog.NewTextHandler(lines, nil))}
	for _, c := range change {
		c(&cfg)
	}
	f.mu.Lock()
	f.token = string(cfg.Token)
	f.mu.Unlock()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.Dial(ctx) }
	t.Cleanup(func() {
		c.Close()
		_ = srv.Close()
		<-served
	})
	return c, lines
}

// logLines keeps what a logger writes.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// set stores an object, as another client of the API does.
func (f *fakeAPI) set(path string, o map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.storeLocked(path, o)
}

// get returns a copy of an object, or nil.
func (f *fakeAPI) get(path string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects[path] == nil {
		return nil
	}
	return clone(f.objects[path])
}

func (f *fakeAPI) remove(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.objects[path]
	if o == nil {
		return
	}
	delete(f.objects, path)
	f.version++
	o = clone(o)
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(f.version)
	f.publishLocked(fakeEvent{f.version, path, "DELETED", o})
}

// forget drops the history, as a compaction of etcd does.
func (f *fakeAPI) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.oldest = f.version
	close(f.changed)
	f.changed = make(chan struct{})
}

// onWrite sets after.
func (f *fakeAPI) onWrite(after func(r *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = after
}

func (f *fakeAPI) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

func (f *fakeAPI) failWith(fault func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func clone(o map[string]any) map[string]any {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var c map[string]any
	if err := json.Unmarshal(text, &c); err != nil {
		panic(err)
	}
	return c
}

func (f *fakeAPI) storeLocked(path string, o map[string]any) map[string]any {
	o = clone(o)
	f.version++
	kind := "MODIFIED"
	if f.objects[path] == nil {
		kind = "ADDED"
	}
	if o["metadata"] == nil {
		o["metadata"] = map[string]any{}
	}
	meta := o["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(f.version)
	meta["name"] = path[strings.LastIndex(path, "/")+1:]
	f.objects[path] = o
	f.publishLocked(fakeEvent{f.version, path, kind, o})
	return o
}

func (f *fakeAPI) publishLocked(e fakeEvent) {
	f.history = append(f.history, e)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body) // before all else: only then net/http sees the client go
	if err != nil {
		return
	}
	f.mu.Lock()
	what := r.Method + " " + r.URL.Path
	if r.URL.Query().Get("watch") != "" {
		what = "WATCH " + r.URL.Path
	}
	f.requests = append(f.requests, what)
	fault, after, token := f.fault, f.after, f.token
	f.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != "Bearer "+token {
		refuse(w, 401, "Unauthorized", "Unauthorized")
		return
	}
	if fault != nil && fault(w, r) {
		return
	}
	if r.URL.Query().Get("watch") != "" {
		f.watch(w, r)
		return
	}
	status, answer := f.answer(r, body)
	if after != nil && r.Method != http.MethodGet {
		after(r)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fakeAPI) answer(r *http.Request, body []byte) (int, any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := r.URL.Path
	var given map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &given); err != nil {
			return 400, failure(400, "BadRequest", err.Error())
		}
	}
	missing := failure(404, "NotFound", path+" not found")
	switch r.Method {
	case http.MethodGet:
		if o := f.objects[path]; o != nil {
			return 200, o
		}
		if strings.HasSuffix(path, "s") { // a collection: leases, pods, endpointslices
			return 200, f.listLocked(r)
		}
		return 404, missing
	case http.MethodPost:
		path += "/" + given["metadata"].(map[string]any)["name"].(string)
		if f.objects[path] != nil {
			return 409, failure(409, "AlreadyExists", path+" already exists")
		}
		return 201, f.storeLocked(path, given)
	case http.MethodPut:
		old := f.objects[path]
		if old == nil {
			return 404, missing
		}
		if old["metadata"].(map[string]any)["resourceVersion"] != given["metadata"].(map[string]any)["resourceVersion"] {
			return 409, failure(409, "Conflict", "the object has been modified")
		}
		return 200, f.storeLocked(path, given)
	case http.MethodPatch:
		path = strings.TrimSuffix(path, "/status")
		old := f.objects[path]
		if old == nil {
			return 404, missing
		}
		old = clone(old) // others read the stored one
		if text := f.patchResponders(old, given); text != "" {
			return 422, failure(422, "Invalid", text)
		}
		return 200, f.storeLocked(path, old)
	}
	return 405, failure(405, "MethodNotAllowed", r.Method)
}

// listLocked answers a list, in pages when the request has a limit.
func (f *fakeAPI) listLocked(r *http.Request) any {
	var paths []string
	for path := range f.objects {
		if f.selects(r, path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	meta := map[string]any{"resourceVersion": strconv.Itoa(f.version)}
	paths = paths[from:]
	if limit > 0 && len(paths) > limit {
		paths = paths[:limit]
		meta["continue"] = strconv.Itoa(from + limit)
	}
	items := []any{}
	for _, path := range paths {
		items = append(items, f.objects[path])
	}
	return map[string]any{"kind": "List", "metadata": meta, "items": items}
}

// selects reports whether the request is about the object, with a field selector on
// the name.
func (f *fakeAPI) selects(r *http.Request, path string) bool {
	if !strings.HasPrefix(path, r.URL.Path+"/") {
		return false
	}
	name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return !ok || strings.HasSuffix(path, "/"+name)
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.WriteHeader(200)
	_ = http.NewResponseController(w).Flush()
	out := json.NewEncoder(w)
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	if r.URL.Query().Get("resourceVersion") == "" { // what there is, and the changes from now on
		f.mu.Lock()
		from = f.version
		for path, o := range f.objects {
			if f.selects(r, path) {
				_ = out.Encode(fakeEvent{Type: "ADDED", Object: clone(o)})
			}
		}
		f.mu.Unlock()
	}
	for {
		f.mu.Lock()
		changed, expired := f.changed, from < f.oldest
		var events []fakeEvent
		for _, e := range f.history {
			if e.version > from {
				from = e.version
				if f.selects(r, e.path) {
					events = append(events, e)
				}
			}
		}
		f.mu.Unlock()
		if expired {
			_ = out.Encode(map[string]any{"type": "ERROR", "object": failure(410, "Expired", "too old resource version")})
			return
		}
		for _, e := range events {
			if out.Encode(e) != nil {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-over.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func failure(code int, reason, message string) map[string]any {
	return map[string]any{"kind": "Status", "code": code, "reason": reason, "message": message}
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(failure(code, reason, message))
}

// forbid refuses requests with this verb of HTTP, or all when it is "".
func forbid(method string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if method != "" && r.Method != method {
			return false
		}
		refuse(w, 403, "Forbidden", fmt.Sprintf("User \"web\" cannot %s %s", r.Method, r.URL.Path))
		return true
	}
}

// hang never answers.
func hang(_ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}
