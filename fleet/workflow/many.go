package workflow

import (
	"context"
	"fmt"
	"sync"
)

// Move is one transition of [Manager.TransitionMany].
type Move struct {
	// EntityID is the entity, and To the phase to move it to.
	EntityID, To string
	// Source and Note are stored with the transition, as in [Manager.Transition].
	Source TransitionSource
	Note   string
	// Options modify this write alone.
	Options []WriteOption
}

// Moved is the result of a [Move].
type Moved struct {
	// Revision is the revision of the write, 0 when nothing was written.
	Revision uint64
	// Err is the error that [Manager.Transition] returns; nil when the entity was moved.
	Err error
}

// TransitionMany moves many entities of a workflow. The result has one element for each
// move, at the same index. Each move is a write of its own with all that
// [Manager.Transition] promises: it happens once or not at all, also when
// others fail, and its error is the one that Transition returns. They are not one
// transaction.
//
//	for i, moved := range mgr.TransitionMany(ctx, "drone-survey", moves) {
//		if moved.Err != nil {
//			log.Print(moves[i].EntityID, ": ", moved.Err)
//		}
//	}
//
// Up to 256 moves are under way at once. Two moves of one entity happen in their order;
// others in any. A move waits for its own entity at most as long as Transition does, and
// when ctx ends, moves that were not sent are not sent.
func (m *Manager) TransitionMany(ctx context.Context, workflow string, moves []Move) []Moved {
	results := make([]Moved, len(moves))
	r, err := m.registration(workflow)
	if err != nil {
		for i := range results {
			results[i].Err = fmt.Errorf("transition: %w", err)
		}
		return results
	}
	entities := make(map[string][]int, len(moves)) // the moves of each
	for i := range moves {
		entities[moves[i].EntityID] = append(entities[moves[i].EntityID], i)
	}
	var writers sync.WaitGroup
	room := make(chan struct{}, maxMoves)
	for _, own := range entities {
		room <- struct{}{}
		writers.Go(func() {
			for _, i := range own {
				results[i] = m.move(ctx, r, &moves[i])
			}
			<-room
		})
	}
	writers.Wait()
	return results
}

const maxMoves = 256

func (m *Manager) move(ctx context.Context, r *registration, mv *Move) (moved Moved) {
	w := options(mv.Options)
	if w.revision == nil {
		w.revision = &moved.Revision
	}
	t := transition{source: mv.Source, note: mv.Note, to: always(mv.To)}
	if moved.Err = m.transition(ctx, r, mv.EntityID, t, w); moved.Err == nil && !w.dry {
		moved.Revision = *w.revision
	}
	return moved
}
