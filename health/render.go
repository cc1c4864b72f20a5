package health

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

func statusOf(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// answer renders the result as JSON.
func (r *result) answer() *answer.Answer {
	return answer.New(statusOf(r.ok), answer.TypeJSON, r.json())
}

// json renders {"status":"ok"|"fail","checks":{NAME:"ok"|ERROR}} without the
// excluded checks. Bytes that are not UTF-8 become U+FFFD.
func (r *result) json() []byte {
	var said struct {
		Status string            `json:"status"`
		Checks map[string]string `json:"checks"`
	}
	said.Status, said.Checks = "fail", make(map[string]string, len(r.items))
	if r.ok {
		said.Status = "ok"
	}
	for i := range r.items {
		if it := &r.items[i]; !it.excluded {
			said.Checks[it.name] = it.word()
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(said) // texts can be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// word returns the text of a check in the JSON.
func (it *item) word() string {
	switch {
	case it.state == Up && it.note != "":
		return it.note
	case it.state == Up:
		return "ok"
	case it.causedBy != "":
		return "caused by " + it.causedBy
	case it.text == "":
		return string(it.state)
	}
	return it.text
}

// verbose renders the result for people, as the components of Kubernetes do.
func (r *result) verbose() []byte {
	var b bytes.Buffer
	for i := range r.items {
		r.items[i].line(&b)
	}
	if len(r.unknown) > 0 {
		b.WriteString("warn: some health checks cannot be excluded: no matches for ")
		for i, name := range r.unknown {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(strconv.Quote(name))
		}
		b.WriteByte('\n')
	}
	b.WriteString(r.plane.path())
	if r.ok {
		b.WriteString(" check passed\n")
	} else {
		b.WriteString(" check failed\n")
	}
	return b.Bytes()
}

func (it *item) line(b *bytes.Buffer) {
	switch {
	case it.excluded:
		b.WriteString("[+]" + it.name + " excluded: ok")
	case it.state == Up && it.note != "":
		b.WriteString("[+]" + it.name + " ok: " + it.note)
	case it.state == Up && it.text != "":
		b.WriteString("[+]" + it.name + " ok" + it.aside() + ", its last run failed: " + text.OneLine(it.text))
	case it.state == Up:
		b.WriteString("[+]" + it.name + " ok" + it.aside())
	case it.state == Unknown:
		b.WriteString("[?]" + it.name + " unknown" + it.aside() + ": " + text.OneLine(it.text))
	default:
		b.WriteString("[-]" + it.name + " failed" + it.aside() + ": " + text.OneLine(it.text))
	}
	b.WriteByte('\n')
}

// aside returns the text in brackets on a line: that a failure does not fail the plane, and
// the check at its root.
func (it *item) aside() string {
	var parts []string
	if it.nonCritical {
		parts = append(parts, "not critical")
	}
	if it.causedBy != "" {
		parts = append(parts, "caused by "+it.causedBy)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
