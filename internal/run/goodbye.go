package run

import (
	"io"
	"sync"
	"time"
)

// patienceOfPeers is how long a websocket waits for the client's answer to its Close frame.
const patienceOfPeers = time.Second

// goodbye is a stream from the program that ends between two of its messages when its client
// is told to go, with some last words.
type goodbye struct {
	from     io.ReadCloser
	at       boundaries
	words    []byte
	draining <-chan struct{}

	parts  chan []byte // from the goroutine that reads; closed behind its last
	failed error       // why it was the last; set before parts is closed
	closed chan struct{}
	once   sync.Once

	// Of Read alone.
	part   []byte // what was not returned yet
	mayEnd bool   // the part ends with a message
	isOver bool   // after part comes the end
}

// newGoodbye returns the stream. Its goroutine ends with from, or with Close.
func newGoodbye(from io.ReadCloser, at boundaries, words []byte, draining <-chan struct{}) *goodbye {
	f := &goodbye{from: from, at: at, words: words, draining: draining, parts: make(chan []byte), closed: make(chan struct{}), mayEnd: true}
	go f.read()
	return f
}

func (f *goodbye) read() {
	defer close(f.parts)
	for {
		p := make([]byte, 4<<10)
		n, err := f.from.Read(p)
		if n > 0 {
			select {
			case f.parts <- p[:n]:
			case <-f.closed:
				return
			}
		}
		if err != nil {
			f.failed = err
			return
		}
	}
}

// Read returns what the program sends, until the client is told to go.
func (f *goodbye) Read(p []byte) (int, error) {
	for len(f.part) == 0 {
		if f.isOver {
			f.linger()
			return 0, io.EOF
		}
		var told <-chan struct{} // asked only where the stream may end
		if f.mayEnd {
			told = f.draining
		}
		select {
		case <-told:
			f.part, f.isOver = f.words, true
			continue
		default:
		}
		select {
		case <-told:
			f.part, f.isOver = f.words, true
		case part, ok := <-f.parts:
			if !ok {
				return 0, f.failed
			}
			f.take(part)
		case <-f.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, f.part)
	f.part = f.part[n:]
	return n, nil
}

// take takes a part of the stream. When the client is to go, the part ends with its first
// message.
func (f *goodbye) take(part []byte) {
	first, last := f.at.end(part)
	f.part, f.mayEnd = part, last
	select {
	case <-f.draining:
		if first >= 0 {
			f.part, f.isOver = append(part[:first:first], f.words...), true
		}
	default:
	}
}

// linger waits for the client's own goodbye, which the program gets and answers with its end.
func (f *goodbye) linger() {
	if f.words == nil {
		return
	}
	late := time.After(patienceOfPeers)
	for {
		select {
		case _, ok := <-f.parts:
			if !ok {
				return
			}
		case <-late:
			return
		case <-f.closed:
			return
		}
	}
}

// Close closes the program's side.
func (f *goodbye) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.from.Close()
}
