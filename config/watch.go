package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"slices"
	"time"
)

// watchEvery is how often [Live.Watch] checks the files.
const watchEvery = 2 * time.Second

// settled is how long a file must stay the same before Watch reads it: its writer may
// not have finished.
const settled = 200 * time.Millisecond

// settledShorter is the same for a file that has become shorter. The first half of a
// file can be a valid configuration, in which all keys of the other half have their
// defaults. Its writer may pause: an editor on a network file system, a script that
// appends, a full disk.
const settledShorter = 5 * time.Second

// Watch checks the files until ctx ends. It calls reload when a content differs from
// the last one that was read and has been stable for 200 ms, or for 5 s when it is
// shorter. It returns nil, at once when there is none. reload is
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
	names, isGiven := l.loader.files, l.loader.content != nil
	l.mu.Unlock()
	if len(names) == 0 || isGiven { // WithContent stands in place of the file
		return nil
	}
	gone := ""
	var seen looks // the state that has to be stable
	var since time.Time
	for pause := watchEvery; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = watchEvery
		now, last := lookInto(names), l.lastRead()
		missing := now.missing(last, names)
		if missing != "" && gone == "" {
			l.loader.log().Warn("config: the file is missing; the last configuration stays", "file", missing)
		}
		gone = missing
		switch {
		case missing != "" || now.same(last):
			seen = nil
			continue
		case seen == nil || !now.same(seen):
			seen, since = now, time.Now()
			pause = settled
			continue
		case now.shorter(last) && time.Since(since) < settledShorter:
			pause = settled
			continue
		}
		seen = nil
		_ = reload(ctx) // reload logs and reports its errors
	}
}

// look is the state of a file at one moment.
type look struct {
	sum  [sha256.Size]byte
	size int
	err  error
}

func lookAt(content []byte, err error) look {
	return look{sum: sha256.Sum256(content), size: len(content), err: err}
}

func (p look) same(other look) bool {
	if p.err != nil || other.err != nil {
		return p.err != nil && other.err != nil && p.err.Error() == other.err.Error()
	}
	return p.sum == other.sum
}

// looks are the states of all files.
type looks []look

func lookInto(names []string) (all looks) {
	for _, name := range names {
		all = append(all, lookAt(readFile(name)))
	}
	return all
}

func (p looks) same(other looks) bool { return slices.EqualFunc(p, other, look.same) }

// shorter reports whether a file has less content than in last.
func (p looks) shorter(last looks) bool {
	for i := range min(len(p), len(last)) {
		if p[i].err == nil && last[i].err == nil && p[i].size < last[i].size {
			return true
		}
	}
	return false
}

// missing returns the name of a file that last has and that is not there any more; "" for none.
func (p looks) missing(last looks, names []string) string {
	for i := range min(len(p), len(last)) {
		if errors.Is(p[i].err, fs.ErrNotExist) && last[i].err == nil {
			return names[i]
		}
	}
	return ""
}

// lastRead returns the states of the files at the last read, successful or not.
func (l *Live[T]) lastRead() looks {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loader.looks
}
