package dashboard

import (
	"bytes"
	"encoding/json"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Link leads from a process to another system.
type Link struct{ Name, URL string }

// Age describes the entities of a workflow that are in one phase.
type Age struct {
	Phase  string
	Count  int
	Oldest string // its id
	Since  time.Time
	Median time.Duration
	Stuck  int // longer than allowed
}

// stay is the time that an entity spent in a phase.
type stay struct {
	Phase    string
	From     *timestamppb.Timestamp
	Took     *durationpb.Duration // nil in a terminal phase
	Now      bool                 // it is still there
	Tone     string
	At, Long int // of its bar, in thousandths of the life
}

// barWidth is the width of a life, and barLeast that of the shortest stay.
const barWidth, barLeast = 1000, 4

// maxStays is how many stays a page shows.
const maxStays = 100

// stays returns where an entity has been and for how long, oldest first, from its history.
func stays(history []*operatorv1.HistoryEntry, terminal bool, now time.Time) (list []stay) {
	history = history[max(0, len(history)-maxStays):]
	if len(history) == 0 {
		return nil
	}
	begin, end := history[0].GetAt().AsTime(), now
	if terminal {
		end = history[len(history)-1].GetAt().AsTime()
	}
	life := max(end.Sub(begin), time.Millisecond)
	place := func(t time.Time) int {
		return min(barWidth, max(0, int(float64(barWidth)*float64(t.Sub(begin))/float64(life))))
	}
	for i, h := range history {
		s := stay{
			Phase: h.GetTo(),
			From:  h.GetAt(),
			Tone:  tone(h.GetTo()),
			At:    min(place(h.GetAt().AsTime()), barWidth-barLeast),
		}
		last := i == len(history)-1
		until := end
		if !last {
			until = history[i+1].GetAt().AsTime()
		}
		if !last || !terminal {
			s.Took = durationpb.New(max(0, until.Sub(h.GetAt().AsTime())))
		}
		s.Now, s.Long = last && !terminal, max(barLeast, place(until)-s.At)
		list = append(list, s)
	}
	return list
}

// raw returns a message as the API has it.
func raw(m proto.Message) string {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}
