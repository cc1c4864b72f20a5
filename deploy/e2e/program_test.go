package e2e

import (
	"testing"
	"time"
)

// getsOnly asks for a file on a connection of its own: all that Python's server
// can do.
var getsOnly = crowd{"HTTP/1.0 fresh GET", 3, hesitant{get: true}.client("/", 200, between(20*time.Millisecond, 150*time.Millisecond))}

// pythonServer returns Python's own threading file server behind "lifecyclectl run"
// as PID 1, in an image that has only lifecyclectl; Python comes from the node.
func (c *cluster) pythonServer(name string, flags ...string) deployment {
	args := append([]string{"run", "-ready=http://127.0.0.1:8080/"}, flags...)
	return deployment{
		name: name, image: c.ctl, replicas: 3,
		args: append(args, "--", "/usr/bin/python3", "-m", "http.server", "8080", "--directory", "/tmp"),
		host: map[string]string{"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"},
	}
}

// TestProgramWithoutTheLibrary rolls a program in another language, which dies at
// SIGTERM on the spot. Behind "lifecyclectl run" it loses no request.
func TestProgramWithoutTheLibrary(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, c.pythonServer("python"))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	load := d.load(t, getsOnly)
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	d.restart(t)
	pause(t.Context(), 2*time.Second)
	mustLoseNothing(t, d.pods.stops(), load.stop()...)
	d.endedWith(t, 128+15) // SIGTERM ended the program itself
}

// TestControlProgramWithoutADrain shows that the clients notice when there is no drain.
func TestControlProgramWithoutADrain(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, c.pythonServer("python-plain", "-lifecycle.drain-interval=off"))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	load := startLoad(t.Context(), d.addr, nil, getsOnly)
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	d.restart(t)
	pause(t.Context(), 2*time.Second)
	mustLoseSome(t, load.stop()...)
}
