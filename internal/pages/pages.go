// Package pages fills in the generated parts of Markdown pages, so that a page is
// written by hand around its tables and figures. A part stands between two comments:
//
//	<!-- bench: table of restarts -->
//	| … |
//	<!-- end of bench -->
//
// The text after the colon says what to write there; its meaning is the generator's, and it
// may have many lines. The generators of this repository (tools/docgen, bench/cmd) share
// this package. Begin with [Fill].
package pages

import (
	"fmt"
	"os"
	"strings"
)

// Fill returns the page in file. Each part that belongs to the generator of that name is
// replaced with what write returns for the text of the part's first comment.
func Fill(file, generator string, write func(what string) (string, error)) (string, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return fill(string(page), generator, write)
}

func fill(page, generator string, write func(what string) (string, error)) (string, error) {
	begin, end := "<!-- "+generator+":", "<!-- end of "+generator+" -->"
	var b strings.Builder
	for parts := 1; ; parts++ {
		before, rest, found := strings.Cut(page, begin)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		what, rest, closed := strings.Cut(rest, "-->")
		old, after, ended := strings.Cut(rest, end)
		if !closed || !ended || strings.Contains(old, begin) {
			return "", fmt.Errorf("part %d of %s has no %s", parts, generator, end)
		}
		text, err := write(strings.TrimSpace(what))
		if err != nil {
			return "", fmt.Errorf("part %d of %s: %w", parts, generator, err)
		}
		b.WriteString(begin + what + "-->\n\n" + strings.TrimSpace(text) + "\n\n" + end)
		page = after
	}
}

// Table returns a table in Markdown.
func Table(head []string, rows [][]string) string {
	var b strings.Builder
	row := func(cells []string) {
		b.WriteString("|")
		for _, cell := range cells {
			b.WriteString(strings.TrimRight(" "+cell, " ") + " |")
		}
		b.WriteString("\n")
	}
	row(head)
	b.WriteString("|" + strings.Repeat(" --- |", len(head)) + "\n")
	for _, cells := range rows {
		row(cells)
	}
	return b.String()
}
