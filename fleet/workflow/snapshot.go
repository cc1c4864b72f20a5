package workflow

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// WithSnapshot keeps a copy of the view in a file of a folder, so that the next start of
// the process reads from the server only what was written since, and not the whole
// bucket. The file is written when the Manager is closed and every ten minutes. It needs
// as much room as the records, twice while it is written.
//
// The file is only a cache. A start ignores it when it is damaged, of another bucket or
// an earlier bucket of the same name, of other workflows, or when more was written since
// than the bucket has keys. A process needs a folder of its own.
func WithSnapshot(dir string) RegisterOption { return func(r *registration) { r.snapshot = dir } }

const (
	// snapshotEvery is the time between two files.
	snapshotEvery = 10 * time.Minute
	// snapshotForm is the first line of a file. Another form gets another line.
	snapshotForm = "lifecycle view 1\n"
	// maxPart bounds a part of a file, so that a damaged length allocates no more.
	maxPart = 1 << 28
)

// snapshotHead describes a file.
type snapshotHead struct {
	Bucket  string    `json:"bucket"`
	Scope   string    `json:"scope"`
	Created time.Time `json:"created"` // the stream
	Seq     uint64    `json:"seq"`     // the last message that is in it
	At      time.Time `json:"at"`      // of that message
	Op      string    `json:"op"`      // of that message
	Others  int       `json:"others"`
	Keys    int       `json:"keys"`
}

// snapshotPath returns the file of the view, "" for none.
func (v *view) snapshotPath() string {
	for _, r := range v.viewed() {
		if r.snapshot != "" {
			return filepath.Join(r.snapshot, v.b.name+".view")
		}
	}
	return ""
}

// viewed returns the workflows that the view has.
func (v *view) viewed() []*registration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(v.regs), func(r *registration) bool { return r.blind })
}

// scope describes what the view has of its bucket.
func (v *view) scope() string {
	var parts []string
	for _, r := range v.viewed() {
		part := fmt.Sprintf("%q %q", r.workflow, r.prefix)
		if r.only != nil {
			part += fmt.Sprintf(" %q of %q", slices.Sorted(maps.Keys(r.only)), r.table.Phases())
		}
		parts = append(parts, part)
	}
	return fmt.Sprint(parts)
}

// keepSnapshots writes the file now and then until ctx ends.
func (v *view) keepSnapshots(ctx context.Context) {
	tick := time.NewTicker(v.b.pace.Of(snapshotEvery))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			v.saveSnapshot(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// saveSnapshot writes the file. Without one the next start reads the bucket, so an error
// is logged and no more.
func (v *view) saveSnapshot(ctx context.Context) {
	path := v.snapshotPath()
	v.mu.RLock()
	ready := v.ready
	v.mu.RUnlock()
	if path == "" || !ready {
		return
	}
	if err := v.writeSnapshot(ctx, path); err != nil && ctx.Err() == nil {
		v.m.log.Warn("cannot keep the view in a file", "bucket", v.b.name, "error", err)
	}
}

func (v *view) writeSnapshot(ctx context.Context, path string) (err error) {
	type revisionOf struct {
		key string
		is  uint64
	}
	f := v.follow
	if !f.enter(ctx) {
		return context.Cause(ctx)
	}
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()
	head := snapshotHead{Bucket: v.b.name, Scope: v.scope(), Created: f.created, Seq: last.seq, At: last.at, Op: last.op, Others: f.others, Keys: len(f.keys)}
	revisions := make([]revisionOf, 0, len(f.keys))
	for key, is := range f.keys {
		revisions = append(revisions, revisionOf{key, is})
	}
	f.leave()
	if head.Seq == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	w := &partWriter{sum: sha256.New()}
	w.out = bufio.NewWriterSize(io.MultiWriter(file, w.sum), 1<<20)
	first, err := json.Marshal(head)
	if err != nil {
		return err
	}
	_, _ = w.out.WriteString(snapshotForm) // the writer keeps its error
	w.bytes(first)
	for _, r := range revisions {
		w.text(r.key)
		w.number(r.is)
	}
	// An entity may be newer than head.Seq. What came after head.Seq is read again.
	take := func(en *entity) bool {
		if en.own && en.revision > head.Seq {
			return true // its times are not the server's yet
		}
		w.text(en.key)
		w.number(en.revision)
		w.number(uint64(en.at))
		w.number(uint64(en.since))
		w.text(en.index.r.workflow)
		w.text(en.version)
		w.text(en.timers)
		w.text(en.keys)
		w.bytes(en.data)
		return true
	}
	for _, r := range v.viewed() {
		if err := v.scan(ctx, &selection{r: r}, nil, take); err != nil {
			return err
		}
		var degraded []entity
		v.mu.RLock()
		for _, en := range v.indexes[r.workflow].degraded {
			if !en.decoded {
				degraded = append(degraded, *en)
			}
		}
		v.mu.RUnlock()
		for i := range degraded {
			take(&degraded[i])
		}
	}
	w.text("") // no key is empty: the end
	if err := w.out.Flush(); err != nil {
		return err
	}
	if _, err := file.Write(w.sum.Sum(nil)); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// partWriter writes numbers and texts with their lengths.
type partWriter struct {
	out *bufio.Writer // keeps its first error, which Flush returns
	sum hash.Hash
	buf [binary.MaxVarintLen64]byte
}

func (w *partWriter) number(n uint64) {
	_, _ = w.out.Write(binary.AppendUvarint(w.buf[:0], n))
}

func (w *partWriter) bytes(data []byte) {
	w.number(uint64(len(data)))
	_, _ = w.out.Write(data)
}

func (w *partWriter) text(text string) {
	w.number(uint64(len(text)))
	_, _ = w.out.WriteString(text)
}

// partReader reads what a partWriter has written. After an error it returns zeros.
type partReader struct {
	in  *bufio.Reader
	err error
}

func (r *partReader) number() (n uint64) {
	if r.err == nil {
		n, r.err = binary.ReadUvarint(r.in)
	}
	return n
}

func (r *partReader) bytes() []byte {
	n := r.number()
	if r.err == nil && n > maxPart {
		r.err = fmt.Errorf("a part of %d bytes", n)
	}
	if r.err != nil || n == 0 {
		return nil
	}
	data := make([]byte, n)
	_, r.err = io.ReadFull(r.in, data)
	return data
}

func (r *partReader) text() string { return string(r.bytes()) }

// loadSnapshot gives the follower what the file has, if it is of the stream that info
// describes. The follower has read nothing, and nothing else uses it.
func (v *view) loadSnapshot(ctx context.Context, info *jetstream.StreamInfo) {
	path := v.snapshotPath()
	if path == "" {
		return
	}
	n, err := v.readSnapshot(ctx, path, info)
	if err == nil {
		v.m.log.Debug("the view begins with its file", "bucket", v.b.name, "entities", n)
	} else if !errors.Is(err, os.ErrNotExist) {
		v.m.log.Info("reading the whole bucket, not the view's file", "bucket", v.b.name, "reason", err)
	}
}

func (v *view) readSnapshot(ctx context.Context, path string, info *jetstream.StreamInfo) (entities int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	stat, err := file.Stat()
	if err != nil {
		return 0, err
	}
	body := stat.Size() - sha256.Size
	if body < int64(len(snapshotForm)) {
		return 0, errors.New("it is too short")
	}
	r := &partReader{in: bufio.NewReaderSize(io.NewSectionReader(file, int64(len(snapshotForm)), body), 1<<20)}
	var head snapshotHead
	if err := json.Unmarshal(r.bytes(), &head); err != nil || r.err != nil {
		return 0, errors.Join(errors.New("it is damaged"), err, r.err)
	}
	if err := v.fitsSnapshot(ctx, head, info); err != nil {
		return 0, err
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	form := make([]byte, len(snapshotForm))
	_, failed := file.ReadAt(form, 0)
	_, copied := io.Copy(sum, io.NewSectionReader(file, 0, body))
	_, ended := file.ReadAt(want, body)
	if err := errors.Join(failed, copied, ended); err != nil {
		return 0, err
	}
	if string(form) != snapshotForm || !bytes.Equal(sum.Sum(nil), want) {
		return 0, errors.New("it is damaged")
	}
	f := v.follow
	for range head.Keys {
		key, is := r.text(), r.number()
		f.keys[key] = is
	}
	for key := r.text(); key != "" && r.err == nil; key = r.text() {
		e := &entry{key: key, revision: r.number(), at: time.Unix(0, int64(r.number()))}
		since := int64(r.number())
		e.header = nats.Header{headerOp: {"?"}, headerWorkflow: {r.text()}, headerSince: {strconv.FormatInt(since, 10)}}
		for _, name := range []string{headerVersion, headerTimers, headerKeys} {
			if value := r.text(); value != "" {
				e.header[name] = []string{value}
			}
		}
		e.data = r.bytes()
		if r.err == nil {
			f.to.Put(key, e)
			entities++
		}
	}
	if r.err != nil { // the file is as it was written: a mistake of this package
		f.forget(0)
		f.to.Gap()
		return 0, fmt.Errorf("read it: %w", r.err)
	}
	f.oldest, f.others = 0, head.Others
	f.note(mark{head.Seq, head.At, head.Op})
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seq = head.Seq
	return entities, nil
}

// fitsSnapshot returns why a file cannot be used, nil when it can.
func (v *view) fitsSnapshot(ctx context.Context, head snapshotHead, info *jetstream.StreamInfo) error {
	switch {
	case head.Bucket != v.b.name || !head.Created.Equal(info.Created):
		return errors.New("it is of another bucket")
	case head.Scope != v.scope():
		return fmt.Errorf("it is of the workflows %s, and those are %s", head.Scope, v.scope())
	case head.Seq == 0 || info.State.LastSeq < head.Seq:
		return errors.New("the bucket was restored from a backup")
	case info.State.LastSeq-head.Seq > uint64(head.Keys):
		return errors.New("it is so old that to read the bucket is less work")
	}
	e, err := v.b.at(ctx, head.Seq)
	if err == nil && !(mark{head.Seq, head.At, head.Op}).is(e) {
		return errors.New("the bucket was restored from a backup")
	}
	return err
}
