package workflow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrBackup is returned by [VerifyBackup] and [RestoreBackup] for a folder that is not a
// complete backup, and for a stream that is not restored as it was.
var ErrBackup = errors.New("workflow: not a usable backup")

// manifest is the file that makes a folder a backup. It is written last.
type manifest struct {
	At      time.Time     `json:"at"`
	Bucket  string        `json:"bucket"`
	Streams []savedStream `json:"streams"` // in the order in which they are saved and restored
	Sum     string        `json:"sum"`     // of the manifest without it
}

const manifestName = "manifest.json"

// savedStream is one stream of a backup.
type savedStream struct {
	Name   string          `json:"name"`
	SHA256 string          `json:"sha256"` // of its file
	Config json.RawMessage `json:"config"`
	State  json.RawMessage `json:"state"`
}

func (s savedStream) path(dir string) string { return filepath.Join(dir, s.Name+".snapshot") }

// streamsOf returns the streams of a bucket in the order of a backup and of a restore:
// hooks repeat reactions then, and miss none.
func streamsOf(bucket string) []string {
	return []string{"KV_" + hooksOf(bucket), journalOf(bucket), "KV_" + bucket}
}

// sum returns the checksum of a manifest without its field Sum.
func (m manifest) sum() (string, error) {
	m.Sum = ""
	data, err := json.Marshal(m)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}

// BackupOption configures one call of [Backup] or [RestoreBackup].
type BackupOption func(*transfer)

// TellProgress calls tell on the goroutine of the call, after each part of a stream: with the
// stream's name and with how many bytes of its file have been written or sent.
func TellProgress(tell func(stream string, bytes int64)) BackupOption {
	return func(t *transfer) { t.tell = tell }
}

// transfer is one backup or restore.
type transfer struct {
	js   jetstream.JetStream
	dir  string
	sum  string // of the backup's manifest, for a restore
	tell func(stream string, bytes int64)
}

func newTransfer(js jetstream.JetStream, dir string, opts []BackupOption) (*transfer, error) {
	t := &transfer{js: js, dir: dir, tell: func(string, int64) {}}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("option %d is nil", i+1)
		}
		opt(t)
	}
	return t, nil
}

// Backup writes the progress of a bucket's hooks, its journal and the bucket, as far as
// they exist, into a new folder. The server checks every message as it reads it. Writers
// need not stop: the hooks' progress is from before the journal, and the journal from before
// the bucket, so after a restore hooks repeat reactions and miss none. The exception is an
// entity that is written more often than the bucket keeps writes (64 times) between the two:
// a change of its phase may be in neither, and its next reaction says so ([Reaction.Gap]).
//
// Use it with a connection of an operator's rights; the account must allow snapshots. A
// folder without its manifest.json is of a Backup that failed.
func Backup(ctx context.Context, js jetstream.JetStream, bucket, dir string, opts ...BackupOption) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up bucket %s: %w", bucket, err)
		}
	}()
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	m := manifest{At: time.Now().UTC(), Bucket: bucket}
	t, err := newTransfer(js, dir, opts)
	if err != nil {
		return err
	}
	for _, name := range streamsOf(bucket) {
		s, err := t.save(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) && name != "KV_"+bucket {
			continue
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		m.Streams = append(m.Streams, s)
	}
	if m.Sum, err = m.sum(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, manifestName)
	if err := os.WriteFile(path+".part", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// save writes a stream into a file.
func (t *transfer) save(ctx context.Context, name string) (s savedStream, err error) {
	// A cluster does not answer a request for a snapshot of a stream that does not exist.
	if _, err := t.js.Stream(ctx, name); err != nil {
		return s, err
	}
	nc := t.js.Conn()
	chunks, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return s, err
	}
	defer func() { _ = chunks.Unsubscribe() }()
	if err := chunks.SetPendingLimits(-1, -1); err != nil {
		return s, err
	}
	var answer struct {
		Error  *jetstream.APIError `json:"error"`
		Config json.RawMessage     `json:"config"`
		State  json.RawMessage     `json:"state"`
	}
	request := map[string]any{"deliver_subject": chunks.Subject, "no_consumers": true, "jsck": true}
	if err := ask(ctx, t.js, "STREAM.SNAPSHOT."+name, request, &answer); err != nil {
		return s, err
	}
	if answer.Error != nil {
		return s, answer.Error
	}
	s = savedStream{Name: name, Config: answer.Config, State: answer.State}
	file, err := os.OpenFile(s.path(t.dir), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	var written int64
	for {
		msg, err := chunks.NextMsgWithContext(ctx)
		if err != nil {
			return s, err
		}
		if len(msg.Data) == 0 {
			if status := msg.Header.Get("Status"); status != "" && status != "204" {
				return s, fmt.Errorf("the server ended the snapshot: %s %s", status, msg.Header.Get("Description"))
			}
			break
		}
		if _, err := io.MultiWriter(file, sum).Write(msg.Data); err != nil {
			return s, err
		}
		written += int64(len(msg.Data))
		t.tell(name, written)
		if msg.Reply != "" {
			if err := msg.Respond(nil); err != nil {
				return s, err
			}
		}
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return s, file.Sync()
}

// BackupStatus describes a backup.
type BackupStatus struct {
	// At is when it was begun, by the clock of the process that made it.
	At time.Time
	// Streams are its streams, the bucket's last.
	Streams []StreamBackup
}

// StreamBackup describes one stream of a backup.
type StreamBackup struct {
	// Name is the stream's.
	Name string
	// Messages is how many it has, and Last the revision of the last one.
	Messages, Last uint64
	// Bytes is the size of its file.
	Bytes int64
}

// VerifyBackup checks that a folder is a complete backup and that no file of it has
// changed, and describes it. It needs no server. The error is an ErrBackup that names the
// file.
func VerifyBackup(dir string) (BackupStatus, error) {
	m, err := readManifest(dir)
	if err != nil {
		return BackupStatus{}, fmt.Errorf("%w: %s: %w", ErrBackup, filepath.Join(dir, manifestName), err)
	}
	status := BackupStatus{At: m.At}
	for _, s := range m.Streams {
		described, err := s.verify(dir)
		if err != nil {
			return BackupStatus{}, fmt.Errorf("%w: %s: %w", ErrBackup, s.path(dir), err)
		}
		status.Streams = append(status.Streams, described)
	}
	return status, nil
}

func readManifest(dir string) (m manifest, err error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, err
	}
	sum, err := m.sum()
	switch {
	case err != nil:
		return m, err
	case m.Sum != sum:
		return m, errors.New("its content has changed")
	case !bucketName.MatchString(m.Bucket):
		return m, fmt.Errorf("its bucket is %q", m.Bucket)
	}
	for _, s := range m.Streams {
		if !slices.Contains(streamsOf(m.Bucket), s.Name) {
			return m, fmt.Errorf("it has the stream %q, which does not belong to the bucket %s", s.Name, m.Bucket)
		}
	}
	return m, nil
}

func (s savedStream) verify(dir string) (StreamBackup, error) {
	file, err := os.Open(s.path(dir))
	if err != nil {
		return StreamBackup{}, err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return StreamBackup{}, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != s.SHA256 {
		return StreamBackup{}, errors.New("its content has changed")
	}
	var n counted
	if err := json.Unmarshal(s.State, &n); err != nil {
		return StreamBackup{}, fmt.Errorf("its state: %w", err)
	}
	return StreamBackup{Name: s.Name, Messages: n.Messages, Last: n.Last, Bytes: size}, nil
}

// RestoreBackup creates the streams of a backup as they were, with their revisions and
// times, the bucket last: no bucket lives without its journal and its hooks' progress. It
// verifies all files first, and afterwards that the server has as many messages, with the
// same first and last revision.
//
// A stream that is already as the backup has it counts as restored, and one that a restore of
// this backup has left half done is replaced. So a restore that was interrupted is called again and
// goes on. When a stream exists and differs, RestoreBackup touches nothing and returns an error that
// wraps jetstream.ErrStreamNameAlreadyInUse. When it fails later, it deletes what it has created,
// unless that was written since.
//
// Each restored stream says in its metadata from which backup it is (lifecycle_restored_from, the
// sum of the manifest).
//
// Delete the streams first to go back in time, and restart the processes that use them, or
// let them find out by themselves. A backup of another person may configure its streams in
// any way: restore backups that you trust.
func RestoreBackup(ctx context.Context, js jetstream.JetStream, dir string, opts ...BackupOption) error {
	if _, err := VerifyBackup(dir); err != nil {
		return err
	}
	m, err := readManifest(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	t, err := newTransfer(js, dir, opts)
	if err != nil {
		return err
	}
	t.sum = m.Sum
	var missing []savedStream
	for _, s := range m.Streams {
		f, err := t.look(ctx, s)
		if err != nil {
			return fmt.Errorf("restore stream %s: %w", s.Name, err)
		}
		if f.is != whole {
			missing = append(missing, s)
		}
	}
	for _, s := range missing {
		if err := t.restoreOnce(ctx, s); err != nil {
			return errors.Join(fmt.Errorf("restore stream %s: %w", s.Name, err), t.undo(ctx, missing))
		}
	}
	return nil
}

// restoredFrom is the key of a restored stream's metadata for the sum of the backup's manifest.
const restoredFrom = "lifecycle_restored_from"

// presence says how much of a saved stream the server has.
type presence int

const (
	absent presence = iota
	part            // a restore of this backup creates it, or was interrupted
	whole
)

// found is what the server has of a saved stream.
type found struct {
	is       presence
	messages uint64
	isOurs   bool // it was restored from this backup
}

// look returns what the server has of a stream. A stream of that name that is neither as the backup has
// it nor a part of a restore is an error.
func (t *transfer) look(ctx context.Context, s savedStream) (f found, err error) {
	var saved jetstream.StreamState
	if err := json.Unmarshal(s.State, &saved); err != nil {
		return f, fmt.Errorf("%w: its state: %w", ErrBackup, err)
	}
	stream, err := t.js.Stream(ctx, s.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	now := stream.CachedInfo().State
	begins := now.FirstSeq == saved.FirstSeq && now.FirstTime.Equal(saved.FirstTime) || saved.Msgs == 0 // it has no first message
	ends := now.LastSeq == saved.LastSeq && now.LastTime.Equal(saved.LastTime)
	f = found{messages: now.Msgs, isOurs: stream.CachedInfo().Config.Metadata[restoredFrom] == t.sum}
	switch {
	case now.Msgs == saved.Msgs && begins && ends:
		f.is = whole
		return f, nil
	case f.isOurs && now.LastSeq < saved.LastSeq:
		f.is = part
		return f, nil
	}
	return f, fmt.Errorf("%w: it has %d messages up to revision %d of %s, the backup has %d up to %d of %s",
		jetstream.ErrStreamNameAlreadyInUse, now.Msgs, now.LastSeq, now.LastTime.Format(time.RFC3339),
		saved.Msgs, saved.LastSeq, saved.LastTime.Format(time.RFC3339))
}

// undo deletes what was restored of streams that were missing. A stream that was written since stays.
// The bucket goes first, and nothing more is deleted when it stays: no bucket may live without its
// journal and its hooks' progress.
func (t *transfer) undo(ctx context.Context, missing []savedStream) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	for _, s := range slices.Backward(missing) {
		f, err := t.look(ctx, s)
		if !f.isOurs && (err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)) {
			continue // it is not there, or is another's
		}
		if err == nil {
			err = t.js.DeleteStream(ctx, s.Name)
		}
		if err != nil {
			return fmt.Errorf("delete stream %s, which was restored: %w", s.Name, err)
		}
	}
	return nil
}

// counted is what a restored stream must agree on.
type counted struct {
	Messages uint64 `json:"messages"`
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
}

// The server gives up a restore that stands still for five seconds, as on a busy machine, and keeps
// what it has stored of it.
var (
	standstill   = worker.Backoff{Min: 6 * time.Second, Max: 6 * time.Second, Jitter: worker.NoJitter}
	restoreAgain = worker.Backoff{Min: 300 * time.Millisecond, Max: 5 * time.Second}
)

// maxRestores is how often a stream is restored when the server gives it up.
const maxRestores = 5

// restoreOnce creates a stream, unless the server completes an earlier restore of it.
func (t *transfer) restoreOnce(ctx context.Context, s savedStream) error {
	for tries := 1; ; tries++ {
		isWhole, err := t.clear(ctx, s)
		if err != nil || isWhole {
			return err
		}
		err = t.restore(ctx, s)
		hasGivenUp := natserr.Is(err, restoreFailed, nameTaken) || errors.Is(err, nats.ErrNoResponders)
		if !hasGivenUp || tries == maxRestores || restoreAgain.Sleep(ctx, tries) != nil {
			return err
		}
	}
}

// clear removes what an interrupted restore has left of a stream. It waits while the server stores
// more of it, and reports whether it becomes whole.
func (t *transfer) clear(ctx context.Context, s savedStream) (isWhole bool, err error) {
	for before := uint64(math.MaxUint64); ; {
		f, err := t.look(ctx, s)
		if wasPart := before != math.MaxUint64; wasPart && f.isOurs && f.is != part && !errors.Is(err, ErrBackup) {
			return true, nil // whole, and perhaps written since
		}
		if err != nil || f.is != part {
			return f.is == whole, err
		}
		if f.messages == before {
			ctx, cancel := context.WithTimeout(ctx, answerTime)
			defer cancel()
			return false, t.js.DeleteStream(ctx, s.Name)
		}
		before = f.messages
		if err := standstill.Sleep(ctx, 1); err != nil {
			return false, err
		}
	}
}

// restore creates a stream from its file.
func (t *transfer) restore(ctx context.Context, s savedStream) error {
	config, err := s.configFrom(t.sum)
	if err != nil {
		return err
	}
	var begun struct {
		Error *jetstream.APIError `json:"error"`
		To    string              `json:"deliver_subject"`
	}
	if err := ask(ctx, t.js, "STREAM.RESTORE."+s.Name, map[string]any{"config": config, "state": s.State}, &begun); err != nil {
		return err
	}
	if begun.Error != nil {
		return begun.Error // another stream of this name may exist
	}
	file, err := os.Open(s.path(t.dir))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	chunk := make([]byte, 128<<10)
	var sent int64
	for {
		n, err := io.ReadFull(file, chunk)
		if errors.Is(err, io.EOF) {
			n = 0 // an empty message ends the transfer
		} else if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		reply, err := t.js.Conn().RequestWithContext(ctx, begun.To, chunk[:n])
		if err != nil {
			return err
		}
		if len(reply.Data) > 0 || n == 0 {
			return s.restored(reply)
		}
		sent += int64(n)
		t.tell(s.Name, sent)
	}
}

// configFrom returns the stream's configuration with the sum of the backup in its metadata.
func (s savedStream) configFrom(sum string) (map[string]json.RawMessage, error) {
	var config map[string]json.RawMessage
	metadata := map[string]string{}
	err := json.Unmarshal(s.Config, &config)
	if saved := config["metadata"]; err == nil && saved != nil {
		err = json.Unmarshal(saved, &metadata)
	}
	if err != nil || config == nil {
		return nil, fmt.Errorf("%w: its configuration: %w", ErrBackup, cmp.Or(err, errors.New("there is none")))
	}
	metadata[restoredFrom] = sum
	config["metadata"], err = json.Marshal(metadata)
	return config, err
}

// The server's codes for a stream of this name that was there when the restore began
// (JSStreamNameExistRestoreFailedErr), and for a restore that it has ended (JSStreamRestoreErrF).
const (
	nameTaken     jetstream.ErrorCode = 10130
	restoreFailed jetstream.ErrorCode = 10062
)

// restored checks the server's last answer.
func (s savedStream) restored(reply *nats.Msg) error {
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		State counted             `json:"state"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return answer.Error
	}
	var want counted
	if err := json.Unmarshal(s.State, &want); err != nil {
		return err
	}
	if want.Messages == 0 { // an empty stream begins at the next message
		answer.State.First, want.First = 0, 0
	}
	if answer.State != want {
		return fmt.Errorf("%w: it has %+v, want %+v", ErrBackup, answer.State, want)
	}
	return nil
}

// ask sends a request to JetStream's API.
func ask(ctx context.Context, js jetstream.JetStream, subject string, request, answer any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	reply, err := js.Conn().RequestWithContext(ctx, pull.API(js)+subject, data)
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Data, answer)
}
