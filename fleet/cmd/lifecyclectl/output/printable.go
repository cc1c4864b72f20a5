package output

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// unprintable reports characters that do not belong on a terminal: controls
// (C0, C1, delete), those that change the direction of text, and those that YAML
// treats as line ends or does not accept.
func unprintable(r rune) bool {
	isControl := r < ' ' || r >= 0x7f && r <= 0x9f
	changesDirection := r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	isRefusedByYAML := r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
	return isControl || changesDirection || isRefusedByYAML
}

// Printable makes foreign text safe for a terminal: it shows control characters
// as escapes.
func Printable(text string) string { return escape(text, "") }

// PrintableLines is Printable for a text of several lines.
func PrintableLines(text string) string { return escape(text, "\n") }

// PrintableText is Printable for a text with lines and tabs.
func PrintableText(text string) string { return escape(text, "\n\t") }

// escape escapes unprintable characters as JSON and YAML do, except those to keep.
func escape(text, keep string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprintable(r) && !strings.ContainsRune(keep, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// IsTerminal reports whether w, a writer or a reader, is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// IsColourful reports whether to write to w in colours: to a terminal that
// supports them, unless NO_COLOR is set (no-color.org).
func IsColourful(w any) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
