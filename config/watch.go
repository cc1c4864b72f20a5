package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"time"
)

// watchEvery is how often [Live.Watch] checks the file.
const watchEvery = 2 * time.Second

// settled is how long a file must stay the same before Watch reads it: its writer may
// not have finished.
const settled = 200 * time.Millisecond

// settledShorter is the same for a file that has become shorter. The first half of a
// file can be a valid configuration, in which all keys of the other half have their
// defaults. Its writer may pause: an editor on a network file system, a script that
// appends, a full disk.
const settledShorter = 5 * time.Second

// Watch checks the file until ctx ends. It calls reload when the content differs from
// the last one that was read and has been stable for 200 ms, or for 5 s when it is
// shorter. It returns nil, at once when there is no file. reload is
// [lifecycle.App.Reload] in an App (see [Live.Attach]), or l.Reload. When reload fails,
// Watch calls it again only after the next change, unless the error was
// [lifecycle.ErrReloadRefused].
//
// Watch reads the file each time and ignores its inode and its times. So every way to
// change the file works: Kubernetes swaps a symbolic link above it for a ConfigMap
// (some 60 to 90 s after the ConfigMap has changed, and never for a subPath mount), an
// editor renames another file over it, a shell truncates and writes it. While the file
// is missing the last configuration stays, and the log says so once.
//
// Watch cannot distinguish half a file from a complete one. The waits above help when
// the writer soon goes on; a writer in place may take longer. So write a new file and
// rename it over the old one, as Kubernetes does.
func (l *Live[T]) Watch(ctx context.Context, reload func(context.Context) error) error {
	l.mu.Lock()
	name := l.loader.file
	l.mu.Unlock()
	if name == "" {
		return nil
	}
	timer := time.NewTimer(watchEvery)
	defer timer.Stop()
	gone := false
	var seen look // the state that has to be stable
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(watchEvery)
		now := lookInto(name)
		missing := errors.Is(now.err, fs.ErrNotExist)
		if missing && !gone && l.lastRead().err == nil {
			l.loader.log().Warn("config: the file is missing; the last configuration stays", "file", name)
		}
		gone = missing
		switch {
		case missing || now.same(l.lastRead()):
			seen = look{}
			continue
		case !seen.taken || !now.same(seen):
			seen, since = now, time.Now()
			timer.Reset(settled)
			continue
		case now.shorter(l.lastRead()) && time.Since(since) < settledShorter:
			timer.Reset(settled)
			continue
		}
		seen = look{}
		_ = reload(ctx) // reload logs and reports its errors
	}
}

// look is the state of a file at one moment.
type look struct {
	taken bool
	sum   [sha256.Size]byte
	size  int
	err   error
}

func lookInto(name string) look {
	content, err := readFile(name)
	return lookAt(content, err)
}

func lookAt(content []byte, err error) look {
	return look{taken: true, sum: sha256.Sum256(content), size: len(content), err: err}
}

// shorter reports whether p has less content than other.
func (p look) shorter(other look) bool {
	return p.err == nil && other.err == nil && p.size < other.size
}

func (p look) same(other look) bool {
	if p.err != nil || other.err != nil {
		return p.err != nil && other.err != nil && p.err.Error() == other.err.Error()
	}
	return p.taken == other.taken && p.sum == other.sum
}

// lastRead returns the state of the file at the last read, successful or not.
func (l *Live[T]) lastRead() look {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loader.look
}
