package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
)

// Logs copies the container's output from its log driver. The engine can read the
// log drivers json-file, journald and local. It cannot read the driver none. Logs
// returns when the container does not run, or with an error.
func (e *Engine) Logs(ctx context.Context, id string, after time.Time, stdout, stderr io.Writer) (time.Time, error) {
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true, Timestamps: true}
	if !after.IsZero() {
		options.Since = fmt.Sprintf("%d.%09d", after.Unix(), after.Nanosecond())
	}
	stream, err := e.cli.ContainerLogs(ctx, id, options)
	if err != nil {
		return after, known(err)
	}
	defer func() { _ = stream.Close() }() // the error does not matter
	return demux(stream, after, stdout, stderr)
}

// demux copies the engine's stream of records. It skips records that are not later than
// after. It returns the time of the last record that was copied.
func demux(from io.Reader, after time.Time, stdout, stderr io.Writer) (last time.Time, err error) {
	last = after
	if _, err = stdcopy.StdCopy(records{stdout, after, &last}, records{stderr, after, &last}, from); err != nil {
		err = fmt.Errorf("read the output: %w", err)
	}
	return last, err
}

// records writes the text of records. A record begins with its time and a space.
type records struct {
	to    io.Writer
	after time.Time
	last  *time.Time
}

// Write writes one record.
func (r records) Write(record []byte) (int, error) {
	stamp, text, ok := bytes.Cut(record, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if !ok || err != nil {
		return 0, fmt.Errorf("record begins with %.40q, want a time and a space", record)
	}
	if at.After(r.after) {
		if _, err := r.to.Write(text); err != nil {
			return 0, err
		}
		*r.last = at
	}
	return len(record), nil
}
