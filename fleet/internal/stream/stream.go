// Package stream has the item type of every stream of changes in the fleet. A stream
// begins with a Put for everything that exists, then sends one Synced, and then each
// change.
//
// Begin with [Item]; a [Sink] takes them. Packages presence, workflow and operator send and
// read such streams.
package stream

// Kind says what an [Item] is.
type Kind string

const (
	// Put is a new value of a key, the first or a later one.
	Put Kind = "put"
	// Deleted says that a key is gone.
	Deleted Kind = "deleted"
	// Synced says that the stream has sent everything that existed when it began. It
	// comes once, and again after each Gap.
	Synced Kind = "synced"
	// Gap says that every earlier item is void: the receiver must forget them. The
	// stream then sends what exists now, and then Synced.
	Gap Kind = "gap"
)

// Item is one element of a stream.
type Item[T any] struct {
	Kind  Kind
	Key   string // "" for Synced and Gap
	Value T      // of a Put; a stream may also set it for a Deleted
}

// Sink takes the items of a stream in order, one call at a time.
type Sink[T any] func(Item[T])

// Put sends the value of a key.
func (s Sink[T]) Put(key string, value T) { s(Item[T]{Kind: Put, Key: key, Value: value}) }

// Delete sends that a key is gone.
func (s Sink[T]) Delete(key string) { s(Item[T]{Kind: Deleted, Key: key}) }

// Sync sends a Synced.
func (s Sink[T]) Sync() { s(Item[T]{Kind: Synced}) }

// Gap sends a Gap.
func (s Sink[T]) Gap() { s(Item[T]{Kind: Gap}) }

// Convert returns a Sink that passes every item to s. It converts the value of each Put
// with f.
func Convert[A, B any](s Sink[B], f func(A) B) Sink[A] {
	return func(it Item[A]) {
		out := Item[B]{Kind: it.Kind, Key: it.Key}
		if it.Kind == Put {
			out.Value = f(it.Value)
		}
		s(out)
	}
}
