package workflow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
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

// Backup writes the progress of a bucket's hooks, its journal and the bucket, as far as
// they exist, into a new folder. The server checks every message as it reads it. Writers
// need not stop: the hooks' progress is from before the journal, and the journal from before
// the bucket, so after a restore hooks repeat reactions and miss none.
//
// Use it with a connection of an operator's rights; the account must allow snapshots. A
// folder without its manifest.json is of a Backup that failed.
func Backup(ctx context.Context, js jetstream.JetStream, bucket, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up bucket %s: %w", bucket, err)
		}
	}()
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	m := manifest{At: time.Now().UTC(), Bucket: bucket}
	for _, name := range streamsOf(bucket) {
		s, err := saveStream(ctx, js, name, dir)
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

// saveStream writes a stream into a file.
func saveStream(ctx context.Context, js jetstream.JetStream, name, dir string) (s savedStream, err error) {
	// A cluster does not answer a request for a snapshot of a stream that does not exist.
	if _, err := js.Stream(ctx, name); err != nil {
		return s, err
	}
	nc := js.Conn()
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
	if err := ask(ctx, js, "STREAM.SNAPSHOT."+name, request, &answer); err != nil {
		return s, err
	}
	if answer.Error != nil {
		return s, answer.Error
	}
	s = savedStream{Name: name, Config: answer.Config, State: answer.State}
	file, err := os.OpenFile(s.path(dir), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
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
// times, the bucket last. It verifies all files first, and afterwards that the server has
// as many messages, with the same first and last revision. When one of the streams exists,
// it touches nothing and returns jetstream.ErrStreamNameAlreadyInUse. When it fails later,
// it deletes what it has created, so that it can be called again.
//
// Delete the streams first to go back in time, and restart the processes that use them, or
// let them find out by themselves. A backup of another person may configure its streams in
// any way: restore backups that you trust.
func RestoreBackup(ctx context.Context, js jetstream.JetStream, dir string) (err error) {
	if _, err := VerifyBackup(dir); err != nil {
		return err
	}
	m, err := readManifest(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	for _, s := range m.Streams {
		_, err := js.Stream(ctx, s.Name)
		if err == nil {
			err = jetstream.ErrStreamNameAlreadyInUse
		}
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("restore stream %s: %w", s.Name, err)
		}
	}
	for i, s := range m.Streams {
		if err := s.restore(ctx, js, dir); err != nil {
			return errors.Join(fmt.Errorf("restore stream %s: %w", s.Name, err), undo(ctx, js, m.Streams[:i]))
		}
	}
	return nil
}

// undo deletes the streams that a restore has created.
func undo(ctx context.Context, js jetstream.JetStream, restored []savedStream) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	var errs []error
	for _, s := range restored {
		if err := js.DeleteStream(ctx, s.Name); err != nil {
			errs = append(errs, fmt.Errorf("delete stream %s, which was restored: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// counted is what a restored stream must agree on.
type counted struct {
	Messages uint64 `json:"messages"`
	First    uint64 `json:"first_seq"`
	Last     uint64 `json:"last_seq"`
}

func (s savedStream) restore(ctx context.Context, js jetstream.JetStream, dir string) error {
	var begun struct {
		Error *jetstream.APIError `json:"error"`
		To    string              `json:"deliver_subject"`
	}
	if err := ask(ctx, js, "STREAM.RESTORE."+s.Name, map[string]any{"config": s.Config, "state": s.State}, &begun); err != nil {
		return err
	}
	if begun.Error != nil {
		return begun.Error
	}
	file, err := os.Open(s.path(dir))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	chunk := make([]byte, 128<<10)
	for {
		n, err := io.ReadFull(file, chunk)
		if errors.Is(err, io.EOF) {
			n = 0 // an empty message ends the transfer
		} else if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		reply, err := js.Conn().RequestWithContext(ctx, begun.To, chunk[:n])
		if err != nil {
			return err
		}
		if len(reply.Data) == 0 && n > 0 {
			continue
		}
		return s.restored(reply)
	}
}

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
