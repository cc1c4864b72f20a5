// Package models runs SPIN on the protocols of docs/internals/models: for tools/models, and for tests that check the
// records of real runs against them.
package models

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Folder has the models, seen from the root of the repository.
const Folder = "docs/internals/models"

// ErrNoSpin says that SPIN or a C compiler is missing.
var ErrNoSpin = errors.New("spin is not installed (make models installs it as root)")

// Search is what SPIN has found in one model.
type Search struct {
	States string   // how many states there are
	Broken string   // the line of the property that does not hold; "" when all hold
	Steps  []string // the lines that begin with @ in the counterexample: FROM -> TO: TEXT
}

// Check searches all states of a model, without the guard of a mutant when it is given. A
// mutant is searched breadth first, so that its counterexample is the shortest.
func Check(root, model, mutant string) (Search, error) {
	m, err := open(root, model)
	if err != nil {
		return Search{}, err
	}
	defer m.close()
	flags := []string{"-O2", "-DNOCLAIM"}
	if mutant != "" {
		m.defines = []string{"-DMUTANT_" + mutant}
		flags = []string{"-O0", "-DNOCLAIM", "-DBFS"} // to optimize it takes longer than to search it
	}
	if err := m.compile(flags...); err != nil {
		return Search{}, err
	}
	out, err := m.search()
	if err != nil {
		return Search{}, err
	}
	var found Search
	if states := regexp.MustCompile(`(\d+) states, stored`).FindStringSubmatch(out); states != nil {
		found.States = states[1]
	}
	if strings.Contains(out, "errors: 0") {
		return found, nil
	}
	trail, err := m.run("spin", append(m.defines, "-t", "-T", m.file)...)
	if err != nil {
		return Search{}, err
	}
	text, err := os.ReadFile(filepath.Join(m.dir, m.file))
	if err != nil {
		return Search{}, err
	}
	found.Broken = "the model comes to a standstill"
	if at := regexp.MustCompile(regexp.QuoteMeta(m.file) + `:(\d+), Error: assertion`).FindStringSubmatch(trail); at != nil {
		line, err := strconv.Atoi(at[1])
		if err != nil {
			return Search{}, err
		}
		found.Broken = strings.TrimSpace(strings.Split(string(text), "\n")[line-1])
	}
	for line := range strings.Lines(trail) {
		if step, is := strings.CutPrefix(line, "@ "); is {
			found.Steps = append(found.Steps, strings.TrimSpace(step))
		}
	}
	return found, nil
}

// model is a model in a folder of its own, where SPIN makes a program of it.
type model struct {
	dir, file string
	defines   []string // for the preprocessor
}

// open copies a model. The caller closes it.
func open(root, name string) (*model, error) {
	for _, program := range []string{"spin", compiler()} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoSpin, err)
		}
	}
	dir, err := os.MkdirTemp("", "models")
	if err != nil {
		return nil, err
	}
	m := &model{dir: dir, file: name + ".pml"}
	for _, name := range []string{m.file, "states.pml"} {
		text, err := os.ReadFile(filepath.Join(root, Folder, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

func (m *model) close() { _ = os.RemoveAll(m.dir) }

// run runs a program in the folder of the model.
func (m *model) run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = m.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s of %s: %w\n%s", name, m.file, err, out)
	}
	return string(out), err
}

// compile makes the program that searches the model.
func (m *model) compile(flags ...string) error {
	if _, err := m.run("spin", append(m.defines, "-a", m.file)...); err != nil {
		return err
	}
	_, err := m.run(compiler(), append(flags, "-DSAFETY", "-DNOFAIR", "-DVECTORSZ=2048", "-o", "pan", "pan.c")...)
	return err
}

// search searches all states, until one breaks a property, and returns what SPIN prints.
func (m *model) search(flags ...string) (string, error) {
	out, err := m.run("./pan", append(flags, "-m100000", "-w20")...)
	if err != nil {
		return "", err
	}
	if strings.Contains(out, "max search depth too small") || strings.Contains(out, "out of memory") || !strings.Contains(out, "errors: ") {
		return "", fmt.Errorf("the search of %s did not end:\n%s", m.file, out)
	}
	return out, nil
}

// compiler returns the C compiler: that of the environment, or gcc.
func compiler() string {
	if cc := os.Getenv("MODELS_CC"); cc != "" {
		return cc
	}
	return "gcc"
}
