package lanes

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Progress says which of a stream's numbered messages are done: all up to the floor,
// and the spans above it. The zero value has none. Its JSON is an array of numbers, the
// floor first, so that it stays small: beside the floor there are two numbers for each
// gap. It is not for concurrent use.
type Progress struct {
	floor uint64
	spans []span // above the floor, in order; two of them neither meet nor overlap
}

// span has the numbers from first to last.
type span struct{ first, last uint64 }

// From returns a Progress in which everything up to floor is done.
func From(floor uint64) Progress { return Progress{floor: floor} }

// Floor returns the number up to which everything is done.
func (p *Progress) Floor() uint64 { return p.floor }

// Gaps returns how many spans are done above the floor.
func (p *Progress) Gaps() int { return len(p.spans) }

// Behind returns how many messages up to last are not done.
func (p *Progress) Behind(last uint64) uint64 {
	behind := last - min(last, p.floor)
	for _, s := range p.spans {
		if s.first <= last {
			behind -= min(s.last, last) - s.first + 1
		}
	}
	return behind
}

// Has reports whether message n is done.
func (p *Progress) Has(n uint64) bool {
	if n <= p.floor {
		return true
	}
	_, found := slices.BinarySearchFunc(p.spans, n, func(s span, n uint64) int {
		switch {
		case n < s.first:
			return 1
		case n > s.last:
			return -1
		}
		return 0
	})
	return found
}

// Done notes that message n is done.
func (p *Progress) Done(n uint64) { p.Skip(n, n) }

// Raise notes that everything up to n is done.
func (p *Progress) Raise(n uint64) { p.Skip(0, n) }

// Skip notes that the messages from first to last are done, or are none that the caller
// will ever get. A caller that gets messages in order closes the gaps between them so:
// otherwise the floor would never pass numbers that belong to other readers.
func (p *Progress) Skip(first, last uint64) {
	first = max(first, p.floor+1)
	if last < first {
		return
	}
	// The spans from i to j meet the new one.
	i := sort.Search(len(p.spans), func(i int) bool { return p.spans[i].last+1 >= first })
	j := i
	for j < len(p.spans) && p.spans[j].first <= last+1 {
		first, last = min(first, p.spans[j].first), max(last, p.spans[j].last)
		j++
	}
	if first == p.floor+1 {
		p.floor = last
		p.spans = p.spans[j:] // i is 0: an earlier span would end below the floor
		return
	}
	p.spans = slices.Replace(p.spans, i, j, span{first, last})
}

// Clone returns a copy.
func (p *Progress) Clone() Progress { return p.First(len(p.spans)) }

// First returns a copy with the first n spans above the floor: what the others have is not done
// in it.
func (p *Progress) First(n int) Progress {
	return Progress{p.floor, slices.Clone(p.spans[:min(n, len(p.spans))])}
}

// MarshalJSON returns the floor, and for each span the distance from the number before
// it and its length.
func (p Progress) MarshalJSON() ([]byte, error) {
	numbers := make([]uint64, 1, 1+2*len(p.spans))
	numbers[0] = p.floor
	at := p.floor
	for _, s := range p.spans {
		numbers = append(numbers, s.first-at, s.last-s.first+1)
		at = s.last
	}
	return json.Marshal(numbers)
}

// UnmarshalJSON reads what MarshalJSON wrote. It returns an error for anything else and
// leaves p unchanged.
func (p *Progress) UnmarshalJSON(data []byte) error {
	var numbers []uint64
	if err := json.Unmarshal(data, &numbers); err != nil {
		return err
	}
	if len(numbers)%2 != 1 {
		return errors.New("progress: want a floor and pairs of numbers")
	}
	read := Progress{floor: numbers[0]}
	at := read.floor
	for i := 1; i < len(numbers); i += 2 {
		first := at + numbers[i]
		last := first + numbers[i+1] - 1
		if first < at+2 || last < first { // also when a sum is too large for a uint64
			return fmt.Errorf("progress: the spans are not in order at %d", at)
		}
		read.spans = append(read.spans, span{first, last})
		at = last
	}
	*p = read
	return nil
}
