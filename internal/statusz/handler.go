// Package statusz serves the page /statusz, which describes an App to people, in the form
// that a request asks for, and the endpoints for operators below /admin/. The App passes
// functions; this package does not import the App.
package statusz

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// policy lets the page show itself and load nothing.
var policy = []string{"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}

// Forms are the forms of the page.
type Forms struct {
	HTML     func() []byte
	Tree     func() worker.State // for the pictures
	Document any                 // for the JSON
}

// Handler serves the page in the form that a request asks for.
func Handler(look func() Forms) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !answer.Allow(w, req, http.MethodGet, http.MethodHead) {
			return
		}
		if refusal := answer.QueryTooLong(req); refusal != nil {
			refusal.Write(w, req)
			return
		}
		format := req.URL.Query().Get("format")
		if format == "" {
			format = "html"
			if wantsJSON(req.Header.Get("Accept")) {
				format = "json"
			}
		}
		w.Header()["Vary"] = []string{"Accept"}
		if format == "html" {
			w.Header()["Content-Security-Policy"] = policy
		}
		render(format, look).Write(w, req)
	})
}

func render(format string, look func() Forms) *answer.Answer {
	switch format {
	case "html":
		return answer.New(http.StatusOK, answer.TypeHTML, look().HTML())
	case "json":
		body, err := json.MarshalIndent(look().Document, "", "  ")
		if err != nil { // for example for a year beyond 9999
			return answer.Line(http.StatusInternalServerError, "the status cannot be encoded: %s", text.OneLine(err.Error()))
		}
		return answer.New(http.StatusOK, answer.TypeJSON, append(body, '\n'))
	case "mermaid":
		return answer.New(http.StatusOK, answer.TypeText, []byte(look().Tree().Mermaid()))
	case "dot":
		return answer.New(http.StatusOK, answer.TypeText, []byte(look().Tree().DOT()))
	}
	return answer.Line(http.StatusBadRequest, "format is html, json, mermaid or dot")
}

// wantsJSON reports whether an Accept header names JSON before it names HTML.
func wantsJSON(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(media)) {
		case "application/json":
			return true
		case "text/html":
			return false
		}
	}
	return false
}
