package isolate

import (
	"encoding/json"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// A value of JSON of three bytes becomes a hundred in memory. So what a child sends is counted
// before it is decoded.

// maxValuesOfCall is the most values in a call: each header of a request is two.
const maxValuesOfCall = 2000

// maxValues returns the most values in an answer: of each output its topic, its data and its
// headers.
func maxValues(l engine.Limits) int { return 1000 + 40*min(l.Outputs, 1<<20) }

// decode decodes what a child has sent, unless it has more values than most.
func decode(raw json.RawMessage, most int, into any) error {
	if len(raw) > most { // otherwise it cannot have more
		if n := countValues(raw); n > most {
			return &engine.LimitError{What: "outputs", Limit: fmt.Sprintf("%d values", most)}
		}
	}
	return json.Unmarshal(raw, into)
}

// countValues returns how many values valid JSON has at most: each begins the text, or is
// behind a comma, a colon or a bracket.
func countValues(raw []byte) int {
	n := 1
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case ',', ':', '[', '{':
			n++
		}
	}
	return n
}
