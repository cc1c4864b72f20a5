package host

// Owner is owner.
var Owner = owner

// Leaving is how many slots are on their way out.
func (h *Host) Leaving() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, s := range h.slots {
		select {
		case <-s.quit:
			n++
		default:
		}
	}
	return n
}

// Members are the hosts that this one counts on, with itself.
func (h *Host) Members() []string { return h.members.live() }
