package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// systemFiles are what every program may need: libraries, zones, the null device,
// random numbers, and its own process.
var systemFiles = []string{
	"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache",
	"/etc/localtime", "/usr/share/zoneinfo",
	"/dev/null", "/dev/urandom", "/proc/self",
}

// margin is what a child may hold beside the memory of its code: the garbage of its
// runtime, and the room in which a large value grows.
const margin = 32 << 20

// The rlimits of a child.
const (
	maxFiles = 256
	niceness = 5 // the host's own work goes first
)

// launch raises the floor and becomes the program of the spec. It returns only an
// error.
func launch(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("%s: %w", envSpec, err)
	}
	missing := raise(s)
	if len(missing) > 0 && s.Required {
		return fmt.Errorf("the floor is required and lacks %s", strings.Join(missing, "; "))
	}
	env := s.Env
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "LIFECYCLE_WORKER_") { // of the pool
			env = append(env, v)
		}
	}
	if len(s.Exec) > 0 {
		return become(s.Exec[0], s.Exec, env)
	}
	// No traces of goroutines: the last words must say what happened.
	env = append(env, envRole+"="+roleRun, "GOTRACEBACK=none", "GOMAXPROCS=2")
	return become(self(), os.Args[:1], env)
}

// probe raises the floor and writes what is missing, as a list in JSON.
func probe() {
	missing := raise(spec{Read: systemFiles})
	if missing == nil {
		missing = []string{}
	}
	fail(json.NewEncoder(os.Stdout).Encode(missing))
}

// Missing returns the parts of the floor that this system does not have, each with
// the reason. It starts a process to find out, and returns an error when that fails.
func (c *Children) Missing(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.self)
	cmd.Env, cmd.Dir = []string{envRole + "=" + roleProbe}, "/"
	c.setUser(cmd)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, time.Second
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("probe the floor of children: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	var missing []string
	if err := json.Unmarshal(out.Bytes(), &missing); err != nil {
		return nil, fmt.Errorf("probe the floor of children: %s does not call Main first: %w", c.self, err)
	}
	return missing, nil
}
