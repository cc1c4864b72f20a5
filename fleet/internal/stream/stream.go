// Package stream has the item type of every stream of changes in the fleet:
// what exists is told as puts, then comes one Synced, then each change.
package stream

// Kind says what an [Item] is.
type Kind string

const (
	// Put is a new value of a key, the first or a later one.
	Put Kind = "put"
	// Deleted says that a key is gone.
	Deleted Kind = "deleted"
	// Synced says that everything that existed when the stream began has been
	// told. It comes once, and again after each Gap.
	Synced Kind = "synced"
	// Gap says that everything told before is void: forget it. The stream tells
	// what exists now, and then Synced.
	Gap Kind = "gap"
)

// Item is one element of a stream.
type Item[T any] struct {
	Kind  Kind
	Key   string // "" for Synced and Gap
	Value T      // of a Put; a stream may say what it knows of a Deleted
}

// Sink takes the items of a stream in order, one call at a time.
type Sink[T any] func(Item[T])

// Put tells the value of a key.
func (s Sink[T]) Put(key string, value T) { s(Item[T]{Kind: Put, Key: key, Value: value}) }

// Delete tells that a key is gone.
func (s Sink[T]) Delete(key string) { s(Item[T]{Kind: Deleted, Key: key}) }

// Sync tells that everything that existed has been told.
func (s Sink[T]) Sync() { s(Item[T]{Kind: Synced}) }

// Gap tells that everything told before is void.
func (s Sink[T]) Gap() { s(Item[T]{Kind: Gap}) }

// Convert returns a Sink that passes every item on to s, each put's value
// converted by f.
func Convert[A, B any](s Sink[B], f func(A) B) Sink[A] {
	return func(it Item[A]) {
		out := Item[B]{Kind: it.Kind, Key: it.Key}
		if it.Kind == Put {
			out.Value = f(it.Value)
		}
		s(out)
	}
}
