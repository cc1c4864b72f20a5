package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
)

// hidden has the letters under the ids of workers that are not for those who have the
// workers now: an earlier worker of the id was of another tenant. All of them are older than
// the worker, so they are found once. Later only the limit of letters, which removes the
// oldest, takes any of them away.
type hidden struct {
	mu sync.Mutex          // guards of
	of map[string][]uint64 // the sequences, the oldest first, by the UID of the worker
}

// maxHidden is of how many workers the hidden letters are remembered.
const maxHidden = 100_000

// forTenant reports whether a letter is for those who have a worker of its id and of this
// tenant now. Letters of earlier versions say no tenant.
func (d *DeadLetter) forTenant(tenant string) bool {
	return d.tenancy.UID == "" || d.tenancy.Tenant == tenant
}

// hiddenOf returns how many of the letters under a worker's id are hidden. For a worker
// without hidden letters it asks the server once.
func (l *letters) hiddenOf(ctx context.Context, rec *Record) (int, error) {
	l.hidden.mu.Lock()
	seqs, known := l.hidden.of[rec.UID]
	l.hidden.mu.Unlock()
	if known && len(seqs) == 0 {
		return 0, nil
	}
	subject := l.dead + rec.ID
	oldest, err := l.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(subject))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	if !known {
		if letter(oldest.Sequence, oldest.Time, oldest.Header, nil).tenancy.UID != rec.UID { // otherwise there is none from before the worker
			by := jetstream.ConsumerConfig{FilterSubject: subject, HeadersOnly: true}
			err := replay.Each(ctx, l.stream, by, math.MaxInt, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
				if !letter(meta.Sequence.Stream, meta.Timestamp, m.Headers(), nil).forTenant(rec.Tenant) {
					seqs = append(seqs, meta.Sequence.Stream)
				}
				return true, nil
			})
			if err != nil {
				return 0, fmt.Errorf("count dead letters: %w", err)
			}
		}
		l.hidden.mu.Lock()
		if len(l.hidden.of) >= maxHidden {
			clear(l.hidden.of)
		}
		l.hidden.of[rec.UID] = seqs
		l.hidden.mu.Unlock()
	}
	first, _ := slices.BinarySearch(seqs, oldest.Sequence)
	return len(seqs) - first, nil
}
