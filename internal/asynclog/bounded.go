package asynclog

import (
	"log/slog"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxText bounds the message and the text of each attribute of a record, in
// bytes. Container runtimes split lines that are longer than 16 KiB.
const maxText = 16 << 10

// bounded returns r with long texts cut. Otherwise an error that quotes a whole
// document would be in the log in full, once for each part that reports it. The
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
	short := slog.NewRecord(r.Time, r.Level, text.Excerpt(r.Message, maxText), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		short.AddAttrs(slog.Attr{Key: a.Key, Value: shortened(a.Value)})
		return true
	})
	return short
}

// textOf returns the text of v when v is a text or an error, and "" for every
// other value.
func textOf(v slog.Value) string {
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
		return len(textOf(v)) > maxText
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
	if t := textOf(v); len(t) > maxText {
		return slog.StringValue(text.Excerpt(t, maxText))
	}
	return v
}
