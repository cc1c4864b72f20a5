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
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrBackup is returned by [VerifyBackup] and [RestoreBackup] for a folder that is not a
// complete backup, and for a stream that is not restored as it was.
var ErrBackup = errors.New("lifecycle: not a usable backup")

// manifest is the file that makes a folder a backup. It is written last.
type manifest struct {
	At      time.Time     `json:"at"`
	Streams []savedStream `json:"streams"`       // in the order in which they are restored; the bucket's first
	Sum     string        `json:"sum,omitempty"` // of the others; "" in a backup of an earlier release
}

// savedStream is one stream of a backup.
type savedStream struct {
	Name   string          `json:"name"`
	File   string          `json:"file"`
	Size   int64           `json:"size"`
	SHA256 string          `json:"sha256"`
	Config json.RawMessage `json:"config"`
	State  json.RawMessage `json:"state"`
}

const manifestName = "manifest.json"

// Backup writes a bucket, its journal and the progress of its hooks, as far as they
// exist, into a new folder. The server checks every message as it reads it. Writers need
// not stop: the hooks' progress is from before the journal, and the journal from before
// the bucket, so after a restore hooks repeat reactions and miss none.
//
// Use it with a connection of an operator's rights; the account must allow snapshots. A
// folder without its manifest is of a Backup that failed.
func Backup(ctx context.Context, js jetstream.JetStream, bucket, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up bucket %s: %w", bucket, err)
		}
	}()
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	m := manifest{At: time.Now().UTC()}
	for _, name := range []string{"KV_" + hooksOf(bucket), journalOf(bucket), "KV_" + bucket} {
		s, err := snapshot(ctx, js, name, dir)
		if errors.Is(err, jetstream.ErrStreamNotFound) && name != "KV_"+bucket {
			continue
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		m.Streams = append([]savedStream{s}, m.Streams...)
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if m.Sum, err = sumOf(data); err != nil {
		return err
	}
	if data, err = json.MarshalIndent(m, "", "  "); err != nil {
		return err
	}
	path := filepath.Join(dir, manifestName)
	if err := os.WriteFile(path+".part", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// snapshot writes a stream into a file.
func snapshot(ctx context.Context, js jetstream.JetStream, name, dir string) (s savedStream, err error) {
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
	s = savedStream{Name: name, File: name + ".snapshot", Config: answer.Config, State: answer.State}
	file, err := os.OpenFile(filepath.Join(dir, s.File), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
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
		n, err := io.MultiWriter(file, sum).Write(msg.Data)
		if err != nil {
			return s, err
		}
		s.Size += int64(n)
		if msg.Reply != "" {
			if err := msg.Respond(nil); err != nil {
				return s, err
			}
		}
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return s, file.Sync()
}

// VerifyBackup checks that a folder is a complete backup and that no file of it has
// changed. It needs no server. The error is an ErrBackup that names the file.
func VerifyBackup(dir string) error {
	_, err := readBackup(dir)
	return err
}

// BackupStatus describes a backup.
type BackupStatus struct {
	// At is when it was begun, by the clock of the process that made it.
	At time.Time
	// Streams are its streams, the bucket's first.
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

// ReadBackup is VerifyBackup that also describes the backup.
func ReadBackup(dir string) (BackupStatus, error) {
	m, err := readBackup(dir)
	if err != nil {
		return BackupStatus{}, err
	}
	status := BackupStatus{At: m.At}
	for _, s := range m.Streams {
		var n counted
		if err := json.Unmarshal(s.State, &n); err != nil {
			return BackupStatus{}, fmt.Errorf("%w: %s: %w", ErrBackup, filepath.Join(dir, manifestName), err)
		}
		status.Streams = append(status.Streams, StreamBackup{Name: s.Name, Messages: n.Messages, Last: n.Last, Bytes: s.Size})
	}
	return status, nil
}

func readBackup(dir string) (m manifest, err error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil {
		err = m.check(data)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrBackup, filepath.Join(dir, manifestName), err)
	}
	for _, s := range m.Streams {
		if err := s.verify(dir); err != nil {
			return m, fmt.Errorf("%w: %s: %w", ErrBackup, filepath.Join(dir, s.File), err)
		}
	}
	return m, nil
}

// check checks a manifest, which data is the file of.
func (m manifest) check(data []byte) error {
	if sum, err := sumOf(data); err != nil {
		return err
	} else if m.Sum != "" && m.Sum != sum {
		return errors.New("its content has changed")
	}
	if len(m.Streams) == 0 {
		return errors.New("it names no stream")
	}
	bucket, _ := strings.CutPrefix(m.Streams[0].Name, "KV_")
	rest := map[string]string{"KV_" + bucket: "$KV." + bucket + ".", journalOf(bucket): "", "KV_" + hooksOf(bucket): "$KV." + hooksOf(bucket) + "."}
	if !bucketName.MatchString(bucket) {
		return fmt.Errorf("its first stream is %q, want a bucket's", m.Streams[0].Name)
	}
	for _, s := range m.Streams {
		var config struct {
			Name     string   `json:"name"`
			Subjects []string `json:"subjects"`
		}
		if err := json.Unmarshal(s.Config, &config); err != nil {
			return fmt.Errorf("the configuration of stream %q: %w", s.Name, err)
		}
		subjects, expected := rest[s.Name]
		switch {
		case !expected:
			return fmt.Errorf("it has the stream %q, and a backup of bucket %s has none of that name, or one", s.Name, bucket)
		case config.Name != s.Name:
			return fmt.Errorf("the configuration of stream %s is that of %q", s.Name, config.Name)
		}
		for _, subject := range config.Subjects {
			if subjects == "" || !strings.HasPrefix(subject, subjects) {
				return fmt.Errorf("the stream %s has the subject %q of another", s.Name, subject)
			}
		}
		delete(rest, s.Name)
	}
	return nil
}

// sumOf returns the sum of a manifest, but for the sum in it.
func sumOf(data []byte) (string, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return "", err
	}
	delete(members, "sum")
	rest, err := json.Marshal(members)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(rest)
	return hex.EncodeToString(sum[:]), nil
}

func (s savedStream) verify(dir string) error {
	if s.File != filepath.Base(s.File) || s.File == ".." {
		return errors.New("it is not in the folder")
	}
	file, err := os.Open(filepath.Join(dir, s.File))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	switch {
	case err != nil:
		return err
	case size != s.Size:
		return fmt.Errorf("it has %d bytes, want %d", size, s.Size)
	case hex.EncodeToString(sum.Sum(nil)) != s.SHA256:
		return errors.New("its content has changed")
	}
	return nil
}

// RestoreBackup creates the streams of a backup as they were, with their revisions and
// times. It verifies all files first, and afterwards that the server has as many
// messages, with the same first and last revision. When one of the streams exists, it
// touches nothing and returns jetstream.ErrStreamNameAlreadyInUse. Delete the streams
// first to go back in time, and restart the processes that use them, or let them find
// out by themselves. An archive of a stranger may configure its streams as it likes:
// restore those that you trust.
func RestoreBackup(ctx context.Context, js jetstream.JetStream, dir string) error {
	m, err := readBackup(dir)
	if err != nil {
		return err
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
	for _, s := range m.Streams {
		if err := s.restore(ctx, js, dir); err != nil {
			return fmt.Errorf("restore stream %s: %w", s.Name, err)
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
	file, err := os.Open(filepath.Join(dir, s.File))
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
	opts, api := js.Options(), jetstream.DefaultAPIPrefix
	switch {
	case opts.APIPrefix != "":
		api = opts.APIPrefix + "."
	case opts.Domain != "":
		api = "$JS." + opts.Domain + ".API."
	}
	reply, err := js.Conn().RequestWithContext(ctx, api+subject, data)
	if err != nil {
		return err
	}
	return json.Unmarshal(reply.Data, answer)
}
