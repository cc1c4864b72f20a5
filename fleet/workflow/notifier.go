package workflow

import "sync"

// notifier wakes all goroutines that wait for it.
type notifier struct {
	mu sync.Mutex
	ch chan struct{} // closed by notify; nil while no goroutine waits
}

// next returns a channel that the next notify closes.
func (n *notifier) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *notifier) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}
