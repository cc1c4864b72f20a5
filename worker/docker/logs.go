package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

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

// maxRecord bounds a record of the stream. The engine cuts lines at 16 KiB.
const maxRecord = 16 << 20

// demux reads the engine's stream of records. A record is a byte for the stream, three
// zeros, the length, and a payload that begins with the time and a space (Docker Engine
// API, "Attach to a container: stream format"). demux skips records that are not later
// than after. It returns the time of the last record.
func demux(from io.Reader, after time.Time, stdout, stderr io.Writer) (last time.Time, err error) {
	last = after
	in := bufio.NewReader(from)
	var header [8]byte
	var payload []byte
	for {
		if _, err := io.ReadFull(in, header[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return last, nil
			}
			return last, fmt.Errorf("read the output: %w", err)
		}
		n := binary.BigEndian.Uint32(header[4:])
		if header[0] > 3 || n > maxRecord {
			return last, fmt.Errorf("read the output: record of stream %d with %d bytes, want stream 1 or 2 and at most %d",
				header[0], n, maxRecord)
		}
		if cap(payload) < int(n) {
			payload = make([]byte, n)
		}
		payload = payload[:n]
		if _, err := io.ReadFull(in, payload); err != nil {
			return last, fmt.Errorf("read the output: %w", err)
		}
		if header[0] == 3 { // an error of the engine itself
			return last, fmt.Errorf("read the output: %s", bytes.TrimSpace(payload))
		}
		stamp, text, ok := bytes.Cut(payload, []byte(" "))
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if !ok || err != nil {
			return last, fmt.Errorf("read the output: record begins with %.40q, want a time and a space", payload)
		}
		if !at.After(after) {
			continue
		}
		to := stdout
		if header[0] == 2 {
			to = stderr
		}
		if _, err := to.Write(text); err != nil {
			return last, err
		}
		last = at
	}
}
