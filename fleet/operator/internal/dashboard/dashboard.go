// Package dashboard is the operators' view in a browser. The server renders the
// pages, and one small script keeps them current. Nothing comes from other
// servers.
//
// Every page works without the script. It reads and acts through the same services as
// every other client, with the caller's own role.
//
// Begin with [New], which lists the pages. A page is a method that fills in a view, and a
// template in pages/. actions.go has a struct for each action: its method, its form, what it
// says before and after; ask.go completes the questions. The package uses the handlers of
// the contract, package diagram and package diagnosis.
package dashboard

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzhttp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

//go:embed pages static
var files embed.FS

// Config configures a Dashboard.
type Config struct {
	Name      string
	Workflows operatorv1connect.WorkflowServiceHandler
	Workers   operatorv1connect.WorkerServiceHandler
	Processes operatorv1connect.ProcessServiceHandler
	Access    operatorv1connect.AccessServiceHandler

	// The areas that the server has.
	HasWorkflows, HasWorkers, HasProcesses bool
	// Sessions says that callers can log in and out.
	Sessions bool
	// SignIn is the name of the provider where people sign in, "" for none. SignsOutAt
	// returns its origin when signing out leads there, "" otherwise.
	SignIn     string
	SignsOutAt func() string

	// Links returns the links of a process to other systems.
	Links func(*operatorv1.Process) []Link
	// Ages returns how long the entities of a workflow have been in each phase: a list of
	// workflow.PhaseCount, for the template alone.
	Ages func(ctx context.Context, typ string) any

	// May reports whether the caller may call a method, such as
	// "ProcessService.DrainProcess", on the type, the worker or the process with that name;
	// "" is the whole fleet.
	May func(ctx context.Context, method, of string) bool
	// Away describes the dependencies that are away, a sentence each.
	Away func() []string
	// Preview marks the context of a page that only asks: dry runs are not audited.
	Preview func(ctx context.Context) context.Context
}

// Dashboard serves /ui/.
type Dashboard struct {
	cfg   Config
	pages map[string]*template.Template
	mux   *http.ServeMux
}

// policy is the content security policy: a page may load its own style, script and
// images, call its own server, and send forms there. No inline script or style, no
// frame.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// New returns a Dashboard. It fails only when a template has a mistake.
func New(cfg Config) (*Dashboard, error) {
	d := &Dashboard{cfg: cfg, pages: map[string]*template.Template{}, mux: http.NewServeMux()}
	base, err := template.New("").Funcs(helpers).Option("missingkey=error").ParseFS(files, "pages/base.html", "pages/parts.html")
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "pages/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		t, err := base.Clone()
		if err == nil {
			_, err = t.ParseFS(files, name)
		}
		if err != nil {
			return nil, err
		}
		d.pages[strings.TrimSuffix(strings.TrimPrefix(name, "pages/"), ".html")] = t
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, err
	}
	assets := http.StripPrefix("/ui/static/", http.FileServerFS(static))
	d.mux.HandleFunc("GET /ui/static/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Cache-Control", "no-cache")
		assets.ServeHTTP(w, r)
	})
	d.mux.HandleFunc("/ui/static/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such file", http.StatusNotFound)
	})
	d.page("GET /ui/{$}", d.home)
	d.page("GET /ui/processes/{id}", d.process)
	d.page("GET /ui/processes/{id}/logs", d.logs)
	d.page("GET /ui/processes/{id}/stacks", d.stacks)
	d.page("GET /ui/processes/{id}/config", d.config)
	d.page("GET /ui/workflows", d.workflows)
	d.page("GET /ui/workflows/{type}", d.workflow)
	d.page("GET /ui/workflows/{type}/{id}", d.entity)
	d.page("GET /ui/workers", d.workers)
	d.page("GET /ui/workers/{id}", d.worker)
	d.page("GET /ui/workers/{id}/deadletters", d.letters)
	d.page("GET /ui/workers/{id}/deadletters/{letter}", d.letter)
	d.mux.HandleFunc("GET /ui/workers/{id}/deadletters/{letter}/data", d.download)
	d.page("GET /ui/workers/{id}/diff", d.code)
	d.page("GET /ui/events", d.events)
	d.page("GET /ui/audit", d.audit)
	d.page("GET /ui/act/{action}", d.ask)
	d.page("POST /ui/act/{action}", d.act)
	d.page("/ui/", func(*http.Request, *view) error {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no such page"))
	})
	return d, nil
}

// ServeHTTP serves a page.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }

// view is the data of a page.
type view struct {
	Fleet    string
	Page     string // its template
	Section  string // of the navigation
	Title    string
	Who      *operatorv1.WhoAmIResponse
	Operator bool
	Inspects bool // may look into processes
	Sessions bool
	SignIn   string // the name of the provider
	Has      struct{ Workflows, Workers, Processes bool }
	Live     bool     // the page fetches itself again
	Away     []string // the dependencies that are away
	Done     string   // what an action has just done
	Problem  string   // why an action was refused or the page cannot be shown
	Now      time.Time
	Data     any

	redirect string
	code     int
}

func (d *Dashboard) page(pattern string, fill func(*http.Request, *view) error) {
	d.mux.Handle(pattern, gzhttp.GzipHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := d.view()
		v.Done = outcome(r.URL.Query())
		who, err := d.cfg.Access.WhoAmI(r.Context(), &operatorv1.WhoAmIRequest{})
		if err == nil {
			v.Who, v.Operator = who, who.GetRole() == "operator"
			v.Inspects = v.Operator || who.GetRole() == "inspector"
			err = fill(r, v)
		}
		if err == nil && v.redirect != "" {
			http.Redirect(w, r, v.redirect, http.StatusSeeOther)
			return
		}
		if err != nil {
			v.fail(httpcode.Of(connect.CodeOf(err)), client.Message(err))
		}
		d.render(w, v)
	})))
}

// problem shows an error on a page that can be shown although the request has failed.
func (v *view) problem(err error) {
	v.Problem, v.code = client.Message(err), httpcode.Of(connect.CodeOf(err))
}

// fail turns a view into the page that says why the requested page is not shown.
func (v *view) fail(code int, problem string) {
	v.Page, v.Live, v.Done, v.Data, v.Problem, v.code = "error", false, "", nil, problem, code
	v.Title = http.StatusText(code)
}

// Refuse renders the page for a request that was refused before routing. It has no
// navigation, because the caller is not authenticated.
func (d *Dashboard) Refuse(w http.ResponseWriter, code int, problem string) {
	v := d.view()
	v.fail(code, problem)
	d.render(w, v)
}

func (d *Dashboard) view() *view {
	v := &view{
		Fleet:    d.cfg.Name,
		Sessions: d.cfg.Sessions,
		SignIn:   d.cfg.SignIn,
		Away:     d.cfg.Away(),
		Now:      time.Now(),
		code:     http.StatusOK,
	}
	v.Has.Workflows, v.Has.Workers, v.Has.Processes = d.cfg.HasWorkflows, d.cfg.HasWorkers, d.cfg.HasProcesses
	return v
}

func (d *Dashboard) render(w http.ResponseWriter, v *view) {
	var b bytes.Buffer
	if err := d.pages[v.Page].ExecuteTemplate(&b, "base", v); err != nil {
		http.Error(w, "the page cannot be rendered", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	rules := policy
	if at := d.cfg.SignsOutAt(); at != "" { // the form that signs out is redirected there
		rules = strings.Replace(rules, "form-action 'self'", "form-action 'self' "+at, 1)
	}
	h.Set("Content-Security-Policy", rules)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(v.code)
	_, _ = w.Write(b.Bytes()) // fails when the caller has gone
}

// Login renders the login form.
func (d *Dashboard) Login(w http.ResponseWriter, next, problem string, code int) {
	v := d.view()
	v.Page, v.Title, v.Problem, v.Data, v.code = "login", "Sign in", problem, next, code
	d.render(w, v)
}

// SignedIn renders the page that leads a browser on after it has signed in at the
// provider. A redirect would not do: the browser came here from another site, and would not
// send the session's cookie, which is SameSite=Strict, along with it.
func (d *Dashboard) SignedIn(w http.ResponseWriter, next string) {
	v := d.view()
	v.Page, v.Title, v.Data = "signedin", "Signed in", next
	w.Header().Set("Refresh", "0; url="+next)
	d.render(w, v)
}

// SignedOut renders the page of a caller who has signed out on this replica only: the session
// may be valid on others until it expires. The page has a link to next.
func (d *Dashboard) SignedOut(w http.ResponseWriter, next string, until time.Time) {
	v := d.view()
	v.Page, v.Title = "signedout", "Signed out"
	v.Data = data{"Next": next, "Until": timestamppb.New(until)}
	d.render(w, v)
}

// Paths of the pages. Ids may be any text.
func processPath(id string) string     { return "/ui/processes/" + url.PathEscape(id) }
func workflowPath(typ string) string   { return "/ui/workflows/" + url.PathEscape(typ) }
func entityPath(typ, id string) string { return workflowPath(typ) + "/" + url.PathEscape(id) }

// workerPath is the page of a hosted worker, or of the workflow of a hook "TYPE/HOOK".
func workerPath(id string) string {
	if i := strings.LastIndex(id, "/"); i >= 0 {
		return workflowPath(id[:i])
	}
	return "/ui/workers/" + url.PathEscape(id)
}
