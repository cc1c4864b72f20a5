package models

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Event is one entry of a record: a step of a model that the real code has done. Life and State are the arguments that
// the model gives to event.
type Event struct {
	Life  int
	State string
}

func (e Event) String() string { return fmt.Sprintf("%d %s", e.Life, e.State) }

// Conform checks that a model can do what each record of the code says. It also changes the longest record, until the
// model refuses it: it drops an entry, or puts one before its neighbour. A record of which the model allows every change
// tells nothing, and is an error. Without MODELS in the environment, which "make models" sets, and without SPIN Conform
// does nothing.
func Conform(t *testing.T, model string, records [][]Event) {
	t.Helper()
	if os.Getenv("MODELS") == "" {
		return
	}
	var all [][]Event
	for _, r := range records {
		if !slices.ContainsFunc(all, func(known []Event) bool { return slices.Equal(known, r) }) {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		t.Fatal("there is no record")
	}
	changes := changesOf(slices.MaxFunc(all, func(a, b []Event) int { return cmp.Compare(len(a), len(b)) }))
	allows, end, err := follower(root(t), model, slices.Concat(all, changes))
	if errors.Is(err, ErrNoSpin) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	asked := func(i int) bool {
		yes, err := allows(i)
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	for i, r := range all {
		if !asked(i) {
			t.Errorf("%s.pml does not allow what happened: %v", model, r)
		}
	}
	for i, changed := range changes {
		if !asked(len(all) + i) {
			t.Logf("%s.pml allows %d records, and refuses %v", model, len(all), changed)
			return
		}
	}
	t.Errorf("%s.pml allows every change of the longest record: it tells nothing", model)
}

// changesOf returns a record without each of its entries in turn, and with each before its neighbour.
func changesOf(record []Event) (changes [][]Event) {
	for i := range record {
		if i < len(record)-1 {
			changes = append(changes, slices.Delete(slices.Clone(record), i, i+1))
		}
		if i > 0 && record[i] != record[i-1] {
			swapped := slices.Clone(record)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			changes = append(changes, swapped)
		}
	}
	return changes
}

// follower makes a program of a model and records. allows reports whether the model can do what a record says, in this
// order and with no other event.
func follower(root, name string, records [][]Event) (allows func(record int) (bool, error), end func(), err error) {
	m, err := open(root, name)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("#include %q\n%s", m.file, claims(records))
	m.file = "record.pml"
	m.defines = []string{"-DRECORD"}
	err = os.WriteFile(filepath.Join(m.dir, m.file), []byte(text), 0o600)
	if err == nil {
		err = m.compile("-O0")
	}
	if err != nil {
		m.close()
		return nil, nil, err
	}
	return func(i int) (bool, error) {
		// Properties are for all orders of steps: Check searches those.
		out, err := m.search("-A", "-E", "-N", fmt.Sprint("record", i))
		return !strings.Contains(out, "errors: 0"), err
	}, m.close, nil
}

// claims returns a never claim for each record. It runs beside each step of the model, and
// lets it do only what is the next entry. When the record is over, SPIN reports that the claim has come to its end.
func claims(records [][]Event) string {
	var b strings.Builder
	for i, r := range records {
		fmt.Fprintf(&b, "never record%d {\n", i)
		for at, e := range r {
			fmt.Fprintf(&b, "at%d_%d:\tif :: events == %d -> goto at%d_%d :: events == %d && latest == EVENT(%d, %s) fi;\n",
				i, at, at, i, at, at+1, e.Life, e.State)
		}
		b.WriteString("\tskip\n}\n")
	}
	return b.String()
}

// root returns the root of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, Folder)); err == nil {
			return dir
		}
	}
	t.Fatal("there is no " + Folder + " above the test")
	return ""
}
