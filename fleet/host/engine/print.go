package engine

import (
	"bytes"
	"strings"
)

// maxLine bounds the part of a printed line that is logged, in bytes.
const maxLine = 4096

// Printer takes the text that code prints during one call, logs it line by line,
// and enforces the limit. It is not for concurrent use.
type Printer struct {
	log   func(string)
	left  int64
	limit error
	line  bytes.Buffer
	over  bool
}

// NewPrinter returns a printer for one call under cfg, whose limits have their
// defaults filled in.
func NewPrinter(cfg Config) *Printer {
	return &Printer{log: cfg.Log, left: cfg.Limits.Output, limit: cfg.Limits.OutputLimit()}
}

// Write takes printed text. Once the text exceeds the limit, Write returns a
// [*LimitError] and the printer logs nothing more.
func (p *Printer) Write(text []byte) (int, error) {
	if p.over || int64(len(text)) > p.left {
		p.over = true
		return 0, p.limit
	}
	p.left -= int64(len(text))
	rest := text
	for {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		p.line.Write(line[:min(len(line), max(0, maxLine-p.line.Len()))])
		if !ended {
			return len(text), nil
		}
		p.flush()
		rest = after
	}
}

// Println prints one line.
func (p *Printer) Println(line string) error {
	_, err := p.Write([]byte(line + "\n"))
	return err
}

// Err returns the [*LimitError] of a printer whose text exceeded the limit, and
// nil otherwise.
func (p *Printer) Err() error {
	if p.over {
		return p.limit
	}
	return nil
}

// Close logs a last line that has no newline.
func (p *Printer) Close() {
	if p.line.Len() > 0 {
		p.flush()
	}
}

func (p *Printer) flush() {
	if p.log != nil {
		p.log(strings.ToValidUTF8(p.line.String(), "\uFFFD"))
	}
	p.line.Reset()
}
