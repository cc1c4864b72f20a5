package dashboard

import (
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	texts "github.com/pleme-io/lifecycle-go/internal/text"
)

var helpers = template.FuncMap{
	"actPath":      actPath,
	"age":          func(t, now time.Time) time.Duration { return max(0, now.Sub(t)) },
	"ago":          ago,
	"breakable":    breakable,
	"command":      diagnosis.Command,
	"count":        count,
	"dict":         dict,
	"digest":       digest,
	"entityPath":   entityPath,
	"exact":        exact,
	"iso":          iso,
	"join":         strings.Join,
	"letterPath":   letterPath,
	"lettersPath":  lettersPath,
	"moreBelow":    func(f *operatorv1.Finding) int64 { return f.GetExplained() - int64(len(f.GetExplains())) },
	"lower":        strings.ToLower,
	"plural":       plural,
	"preview":      preview,
	"processPath":  processPath,
	"raw":          raw,
	"short":        texts.Column,
	"span":         span,
	"stamp":        timestamppb.New,
	"subjectName":  subjectName,
	"subjectPath":  subjectPath,
	"tone":         diagnosis.Tone,
	"unitCounts":   diagnosis.Running,
	"verb":         verb,
	"when":         when,
	"workerPath":   workerPath,
	"workflowPath": workflowPath,
}

// dict returns the data of a template: names, each followed by its value.
func dict(pairs ...any) data {
	d := data{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return d
}

func ago(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return "never"
	}
	d := now.Sub(t.AsTime())
	switch {
	case d < 2*time.Second:
		return "now"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s ago"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min ago"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h ago"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " days ago"
}

func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format("2006-01-02 15:04:05 MST")
}

func iso(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

// span formats a duration: "3d 4h", "5m 10s", "1.5s".
func span(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second / 10).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func digest(d string) string {
	d = strings.TrimPrefix(d, "sha256:")
	return d[:min(12, len(d))]
}

// preview returns the beginning of a message: of text as it is, and of other bytes in
// hexadecimal. Data that was cut may end within a character.
func preview(data []byte) string {
	whole := data
	for n := 0; n < utf8.UTFMax && !utf8.Valid(whole); n++ {
		whole = whole[:len(whole)-1]
	}
	if !utf8.Valid(whole) || len(whole) == 0 {
		return fmt.Sprintf("% x", data[:min(24, len(data))])
	}
	return texts.Column(string(whole), 240)
}

// count formats a number with spaces between thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// subjectPath links to the page of what a finding is about, "" for none.
func subjectPath(subject string) string {
	switch kind, name, _ := strings.Cut(subject, "/"); kind {
	case "process":
		return processPath(name)
	case "service":
		return "/ui/?" + url.Values{"service": {name}}.Encode()
	case "worker":
		return workerPath(name)
	case "workflow":
		return workflowPath(name)
	}
	return ""
}

func subjectName(subject string) string {
	_, name, _ := strings.Cut(subject, "/")
	return name
}

// breakable lets a long name wrap between its parts. Copying it still gives the exact
// name.
func breakable(name string) template.HTML {
	const between = ".-_/:,"
	var b strings.Builder
	for rest := name; rest != ""; {
		n := strings.IndexAny(rest, between) + 1
		if n == 0 {
			n = len(rest)
		}
		b.WriteString(template.HTMLEscapeString(rest[:n]))
		if rest = rest[n:]; rest != "" {
			b.WriteString("<wbr>")
		}
	}
	return template.HTML(b.String()) // every part was escaped
}

// perSecond formats a rate.
func perSecond(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 10:
		return strconv.FormatFloat(n, 'f', 2, 64)
	}
	return count(int64(n + 0.5))
}

// actPath is the page before an action on a group of dead letters.
func actPath(action, worker, group string) string {
	return "/ui/act/" + action + "?" + url.Values{"id": {worker}, "group": {group}}.Encode()
}

// plural returns the word for n things.
func plural(n any, one, many string) string {
	if fmt.Sprint(n) == "1" {
		return one
	}
	return many
}

// exact formats a time to the millisecond, for the script.
func exact(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// verb returns the name of a method without its service.
func verb(action string) string {
	if _, name, ok := strings.Cut(action, "."); ok {
		return name
	}
	return action
}
