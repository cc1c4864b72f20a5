package pull

// Came returns how many messages have come and were not read.
func (p *Puller) Came() int { return len(p.messages) }
