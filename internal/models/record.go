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

// Conform checks that a model can do what each record of the code says. It also changes the longest record: it drops
// each entry in turn, and puts each before its neighbour. The model must refuse at least one of these, or the record
// tells nothing. Without MODELS in the environment, which "make models" sets, and without SPIN it does nothing.
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
	answers, err := allows(root(t), model, slices.Concat(all, changes))
	if errors.Is(err, ErrNoSpin) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var refused [][]Event
	for i, allowed := range answers {
		switch {
		case i < len(all) && !allowed:
			t.Errorf("%s.pml does not allow what happened: %v", model, all[i])
		case i >= len(all) && !allowed:
			refused = append(refused, changes[i-len(all)])
		}
	}
	if len(refused) == 0 {
		t.Fatalf("%s.pml allows every change of the longest record: it tells nothing", model)
	}
	t.Logf("%s.pml allows %d records, and refuses %d of %d changes of the longest, as %v",
		model, len(all), len(refused), len(changes), refused[len(refused)/2])
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

// allows reports of each record whether a model can do what it says, in this order and with no other event.
func allows(root, name string, records [][]Event) (all []bool, err error) {
	m, err := open(root, name)
	if err != nil {
		return nil, err
	}
	defer m.close()
	text := fmt.Sprintf("#include %q\n%s", m.file, claims(records))
	m.file = "record.pml"
	if err := os.WriteFile(filepath.Join(m.dir, m.file), []byte(text), 0o600); err != nil {
		return nil, err
	}
	m.defines = []string{"-DRECORD"}
	if err := m.compile("-O0"); err != nil {
		return nil, err
	}
	for i := range records {
		out, err := m.search("-A", "-E", "-N", fmt.Sprint("record", i)) // properties are for all orders of steps: Check searches those
		if err != nil {
			return nil, err
		}
		all = append(all, !strings.Contains(out, "errors: 0"))
	}
	return all, nil
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
