package asynclog

import (
	"fmt"
	"log/slog"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// maxText bounds the message and the text of each attribute of a record, in
// bytes. Container runtimes split lines that are longer than 16 KiB.
const maxText = 16 << 10

// bounded returns r with long texts cut. Without it the log would have an error
// that quotes a whole document in full, once for each part that reports it. The
// error itself does not change.
func bounded(r slog.Record) slog.Record {
	long := len(r.Message) > maxText
	r.Attrs(func(a slog.Attr) bool {
		long = long || tooLong(a.Value)
		return !long
	})
	if !long {
		return r
	}
	short := slog.NewRecord(r.Time, r.Level, cut(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		short.AddAttrs(slog.Attr{Key: a.Key, Value: shortened(a.Value)})
		return true
	})
	return short
}

// text is what v is written as, if it is a text or an error.
func text(v slog.Value) string {
	switch v.Kind() {
	case slog.KindString:
		return v.String()
	case slog.KindAny:
		if err, is := v.Any().(error); is {
			words := ""
			_ = call.Do("log", func() error { words = err.Error(); return nil }) // an error that panics stays as it is
			return words
		}
	}
	return ""
}

func tooLong(v slog.Value) bool {
	if v.Kind() != slog.KindGroup {
		return len(text(v)) > maxText
	}
	for _, a := range v.Group() {
		if tooLong(a.Value) {
			return true
		}
	}
	return false
}

func shortened(v slog.Value) slog.Value {
	if v.Kind() == slog.KindGroup {
		var group []slog.Attr
		for _, a := range v.Group() {
			group = append(group, slog.Attr{Key: a.Key, Value: shortened(a.Value)})
		}
		return slog.GroupValue(group...)
	}
	if t := text(v); len(t) > maxText {
		return slog.StringValue(cut(t))
	}
	return v
}

// cut keeps the beginning of a text that is too long, and says how long it was.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:end], len(s))
}
