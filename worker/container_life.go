package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// live makes, runs and removes one container. The stop and the removal have a context
// that the stop does not cancel.
func (c *Container) live(own context.Context, spec ContainerSpec) error {
	after := context.WithoutCancel(own)
	making, endMaking := context.WithTimeout(own, c.create)
	made, err := c.engine.Create(making, spec)
	endMaking()
	if err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	c.mu.Lock()
	c.id = made.ID
	c.mu.Unlock()
	v := &containerLife{Container: c, id: made.ID, ask: "SIGTERM"}
	for _, name := range []string{made.StopSignal, spec.StopSignal} {
		if name != "" {
			v.ask = name
		}
	}
	if own.Err() == nil { // else it never runs
		err = v.run(own)
	}
	return v.remove(after, err)
}

// containerLife is a container that exists.
type containerLife struct {
	*Container
	id     string
	ask    string // the signal that asks it to end
	asked  bool   // ask was sent
	forced bool   // SIGKILL was sent
	unsure bool   // the engine has not said whether the container runs
	killed bool   // SIGKILL ended it

	bytes   atomic.Int64  // copied so far
	copied  chan struct{} // closed when copying has ended; nil when the output is dropped
	copyErr error         // set before copied is closed
}

// run starts the container, copies its output and waits for its end.
func (v *containerLife) run(own context.Context) error {
	after := context.WithoutCancel(own)
	if err := do(after, v.engine.Start, v.id); err != nil {
		v.unsure = true // the engine may have started it, and its answer did not arrive
		return fmt.Errorf("start container %s: %w", v.id, err)
	}
	v.MarkRunning()
	waiting, endWait := context.WithCancel(after)
	defer endWait()
	ended := make(chan containerEnd, 1)
	over := make(chan struct{}) // closed when the container has ended
	var end containerEnd
	call.Go(v.Name(), func() error { end = v.await(waiting, v.id); return nil }, func(panicked error) {
		if panicked != nil {
			end.err = panicked
		}
		close(over)
		ended <- end
	})
	copying, endCopy := context.WithCancel(after)
	defer endCopy()
	if v.stdout != nil || v.stderr != nil {
		v.copied = make(chan struct{})
		call.Go(v.Name(), func() error { return v.copyLogs(copying, over) }, func(err error) {
			v.copyErr = err
			close(v.copied)
		})
	}
	err := v.judge(v.end(own, ended))
	return v.rest(own, endCopy, err)
}

// end waits for the container's end, and stops it when own is cancelled.
func (v *containerLife) end(own context.Context, ended <-chan containerEnd) containerEnd {
	after := context.WithoutCancel(own)
	select {
	case end := <-ended:
		return end
	case <-own.Done():
	}
	v.asked = true
	_ = v.signal(after, v.ask)
	_ = do(after, v.engine.Unpause, v.id) // a frozen one gets no signal
	select {
	case end := <-ended:
		return end
	case <-time.After(v.grace):
	case <-v.force.Signaled():
	}
	v.forced = true
	for { // an engine that did not answer may not have sent the signal
		_ = v.signal(after, "SIGKILL")
		select {
		case end := <-ended:
			return end
		case <-time.After(engineRetry):
		}
	}
}

func (v *containerLife) signal(ctx context.Context, name string) error {
	return do(ctx, func(ctx context.Context, id string) error { return v.engine.Signal(ctx, id, name) }, v.id)
}

type containerEnd struct {
	exit ContainerExit
	err  error
}

// await waits for the container's end. When the engine does not answer, await
// asks it again, for as long as WithEnginePatience allows.
func (c *Container) await(ctx context.Context, id string) containerEnd {
	var lost time.Time
	for {
		asked := time.Now()
		exit, err := c.engine.Wait(ctx, id)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNoContainer) {
			return containerEnd{exit, err}
		}
		now := time.Now()
		if lost.IsZero() || now.Sub(asked) > engineRetry { // the engine has answered in between
			lost = now
		}
		if now.Sub(lost) >= c.patience {
			return containerEnd{exit, err}
		}
		sleep(ctx, engineRetry)
	}
}

// judge returns the error that the end of the container means, and keeps its exit.
func (v *containerLife) judge(end containerEnd) error {
	switch {
	case errors.Is(end.err, ErrNoContainer):
		return fmt.Errorf("container %s was removed by another program, and how it ended is not known: %w", v.id, end.err)
	case end.err != nil:
		v.unsure = true
		return fmt.Errorf("container %s may still run: wait for it: %w", v.id, end.err)
	}
	exit := &Exit{Code: end.exit.Code, OOM: end.exit.OOM, At: time.Now()}
	var err error
	number := stopSignals[v.ask]
	switch code := end.exit.Code; {
	case code == 0:
	case end.exit.OOM:
		err = fmt.Errorf("container %s: out of memory: exit code %d", v.id, code)
	case v.forced && code == 128+9:
		v.killed = true
		err = &KilledError{Name: "container " + v.id}
	case v.asked && number != 0 && code == 128+number:
		err = fmt.Errorf("%w: container %s: exit code %d", ErrInterrupted, v.id, code)
	default:
		err = fmt.Errorf("container %s: exit code %d", v.id, code)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	v.mu.Lock()
	v.exit = exit
	v.mu.Unlock()
	return err
}

// remove removes the container and ends the worker. While the engine cannot remove
// it, the worker is abandoned and no other may take its place.
func (v *containerLife) remove(ctx context.Context, err error) error {
	for first := true; ; first = false {
		failed := do(ctx, v.engine.Remove, v.id)
		if failed == nil {
			break
		}
		if first {
			if v.unsure {
				err = fmt.Errorf("%w; remove it: %w", err, failed)
			}
			v.endWith(err)
		}
		time.Sleep(engineRetry)
	}
	if v.copied != nil { // a Write has not returned
		v.endWith(err)
		<-v.copied
	}
	if v.killed {
		v.Kill(err)
	}
	return err
}

// endWith ends the worker while its container may exist, or its output may still
// be copied. Finish ends that state.
func (v *containerLife) endWith(err error) {
	if v.killed {
		v.Kill(err)
	} else {
		v.abandon(err)
	}
}

// copyLogs copies the output until the container has ended and all its output was
// copied.
func (v *containerLife) copyLogs(ctx context.Context, over <-chan struct{}) error {
	stdout, stderr := &sink{to: v.stdout, bytes: &v.bytes}, &sink{to: v.stderr, bytes: &v.bytes}
	var last time.Time
	for {
		final := false
		select {
		case <-over:
			final = true
		default:
		}
		at, err := v.engine.Logs(ctx, v.id, last, stdout, stderr)
		if failed := errors.Join(stdout.failed, stderr.failed); failed != nil {
			return fmt.Errorf("copy the output of container %s: %w", v.id, failed)
		}
		if final || ctx.Err() != nil || errors.Is(err, ErrNoContainer) {
			flush(v.stdout)
			flush(v.stderr)
			return nil //nolint:nilerr // Wait reports what became of the container
		}
		if at.After(last) {
			last = at
		}
		// An engine that shuts down ends the stream without an error. So copyLogs
		// always asks for the stream once more.
		select {
		case <-time.After(engineRetry):
		case <-over:
		case <-ctx.Done():
		}
	}
}

// rest waits for the rest of the output of a container that has ended with err.
func (v *containerLife) rest(own context.Context, endCopy context.CancelFunc, err error) error {
	if v.copied == nil {
		return err
	}
	if !v.copiedAll(own) {
		v.cut()
		endCopy()
		select {
		case <-v.copied:
		case <-time.After(engineRetry):
			if err == nil {
				err = fmt.Errorf("copy the output of container %s: a write did not return", v.id)
			}
			return err
		}
	}
	v.copied = nil
	if err == nil {
		err = v.copyErr
	}
	return err
}

// copiedAll waits until the copying has ended, for as long as the engine may be away. After a
// kill it waits for a while only. Once own has ended it returns false when no byte was copied for
// a while, and when the time of Stop is nearly over.
func (v *containerLife) copiedAll(own context.Context) bool {
	patience, force := max(defaultWaitDelay, v.patience), v.force.Signaled()
	if v.forced || v.force.HasSignaled() {
		patience, force = defaultWaitDelay, nil
	}
	late := time.After(patience)
	for before := int64(-1); ; {
		select {
		case <-v.copied:
			return true
		case <-late:
			return false
		case <-force:
			return false
		case <-time.After(defaultWaitDelay):
		}
		now := v.bytes.Load()
		if now == before && own.Err() != nil {
			return false
		}
		before = now
	}
}

// cut notes that some output of the container was not copied.
func (v *containerLife) cut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.exit != nil {
		v.exit.Cut = true
	}
}

// sink counts what a writer takes, and keeps its first error. A nil writer takes everything.
type sink struct {
	to     io.Writer
	bytes  *atomic.Int64
	failed error
}

func (s *sink) Write(b []byte) (int, error) {
	if s.to == nil {
		return len(b), nil
	}
	n, err := s.to.Write(b)
	s.bytes.Add(int64(n))
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil && s.failed == nil {
		s.failed = err
	}
	return n, err
}

// do bounds one call of an engine.
func do(ctx context.Context, call func(context.Context, string) error, id string) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	return call(ctx, id)
}

// override returns env with the variables of more in place of its own.
func override(env, more []string) []string {
	names := make(map[string]bool, len(more))
	for _, v := range more {
		name, _, _ := strings.Cut(v, "=")
		names[name] = true
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return names[name]
	})
	return append(env, more...)
}
