package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"time"
)

// DefaultPoll is how often [Live.Watch] looks at the file.
const DefaultPoll = 2 * time.Second

// settled is for how long a file has to look the same before it is read: whoever
// writes it may be in the middle of it.
const settled = 200 * time.Millisecond

// settledShorter is the same for a file that has become shorter. The first half of
// a file can be a whole configuration, in which all keys of the other half have
// their defaults, and what writes it may pause: an editor on a network file
// system, a script that appends, a disk that is full.
const settledShorter = 5 * time.Second

// WithPoll sets how often [Live.Watch] looks at the file. Defaults to
// [DefaultPoll]; a duration that is not positive is the default.
func WithPoll(every time.Duration) Option {
	return func(o *options) {
		if every > 0 {
			o.poll = every
		}
	}
}

// Watch looks at the file until ctx ends, and calls reload when its content is
// another than what was read last and has been the same for 200 ms, or for 5 s
// when it is shorter. It returns nil, at once when there is no file. reload is [lifecycle.App.Reload] in an App
// (see [Live.Attach]), or l.Reload; that it fails is no reason to call it again
// before the content changes once more, unless it failed with
// [lifecycle.ErrReloadRefused].
//
// It reads the file each time, whatever its inode and its times say. So it does
// not matter how it changes: Kubernetes swaps a symbolic link above it for a
// ConfigMap (some 60 to 90 s after the ConfigMap has changed, and never for a
// subPath mount), an editor renames another file over it, a shell truncates and
// writes it. While it is missing what was read last stays, and the log says so
// once.
//
// What a half of a file means nobody can tell from a file that was meant so. The
// waits above are for a writer who goes on soon; whoever writes in place may take
// longer, so write beside the file and rename it over it, which is what
// Kubernetes does.
func (l *Live[T]) Watch(ctx context.Context, reload func(context.Context) error) error {
	l.mu.Lock()
	name := l.loader.file
	l.mu.Unlock()
	if name == "" {
		return nil
	}
	timer := time.NewTimer(l.loader.poll)
	defer timer.Stop()
	gone := false
	var seen look // the one that has to last
	var since time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(l.loader.poll)
		now := lookInto(name)
		missing := errors.Is(now.err, fs.ErrNotExist)
		if missing && !gone && l.lastRead().err == nil {
			l.loader.log().Warn("config: the file is gone, what was read last stays", "file", name)
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
		_ = reload(ctx) // it has logged and reported what is wrong
	}
}

// look is what a look at the file has found.
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

// shorter reports whether p found less of a file than other did.
func (p look) shorter(other look) bool {
	return p.err == nil && other.err == nil && p.size < other.size
}

func (p look) same(other look) bool {
	if p.err != nil || other.err != nil {
		return p.err != nil && other.err != nil && p.err.Error() == other.err.Error()
	}
	return p.taken == other.taken && p.sum == other.sum
}

// lastRead is what the file was when it was read last, whatever came of it.
func (l *Live[T]) lastRead() look {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loader.look
}
