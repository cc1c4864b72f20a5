package workflow

import (
	"encoding/json"
	"testing"
)

// legacy reads a name that it does not write any more, and prefers it.
type legacy struct {
	note
}

func (l *legacy) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &l.note); err != nil {
		return err
	}
	var old struct {
		Status *string `json:"status"`
	}
	if err := json.Unmarshal(data, &old); err != nil {
		return err
	}
	if old.Status != nil {
		l.State = *old.Status
	}
	return nil
}

// TestRecordsOfCustomTypesDecodeToWhatWasWritten changes the phase of a record that its
// type reads from a name that it does not write.
func TestRecordsOfCustomTypesDecodeToWhatWasWritten(t *testing.T) {
	r := &registration{workflow: "notes", factory: func() Participant { return new(legacy) }, table: Transitions{"a": {"b"}, "b": {}}}
	if err := r.validate(); err != nil {
		t.Fatal(err)
	}
	if r.plain {
		t.Error("a phase cannot be spliced into records of this type")
	}
	for _, stored := range []string{`{"id":"x","status":"a","more":1}`, `{"id":"x","phase":"a","more":1}`} {
		e := &entry{key: "x", revision: 7, data: []byte(stored)}
		d, err := r.mutated("x", e, func(string, *entry) (meta, error) { return meta{from: "a", entered: "b"}, nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := r.parse("", d.data)
		if err != nil || back.Phase() != "b" {
			t.Errorf("%s became %s, which is in phase %q: %v", stored, d.data, back.Phase(), err)
		}
	}
}
