package config

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go"
)

// Live is a configuration whose file may change while the program runs. Make one with
// [Open]. All methods may be called concurrently.
type Live[T any] struct {
	current atomic.Pointer[T]

	mu       sync.Mutex // held during a reload; guards the fields below
	loader   *loader
	app      *lifecycle.App // the App that has the lifecycle section, nil for none
	checks   []func(old, next T) error
	changed  []func(old, next T)
	settings atomic.Pointer[[]Setting]

	unset    []Setting   // every key with its default; never changed
	start    []Setting   // the result of All at the start; never changed
	attached atomic.Bool // Attach was called
}

// Open is [Load] for a configuration that will be loaded again: when its file changes
// ([Live.Watch]), or on request ([Live.Reload]). [Live.Attach] does both in an App.
func Open[T any](path string, opts ...Option) (*Live[T], error) {
	value, l, err := load[T](path, opts)
	if err != nil {
		return nil, err
	}
	live := &Live[T]{loader: l}
	live.current.Store(&value)
	settings := l.settings // the loader's own changes with the next load
	live.settings.Store(&settings)
	live.unset = l.unset()
	live.start = live.All()
	return live, nil
}

// Get returns the current value. Its lists and maps are shared with other callers: do
// not change them.
func (l *Live[T]) Get() T { return *l.current.Load() }

// Settings returns the source of each given value, and the values that it replaced, in
// the order of the fields of T. A key without any source has its default and is not
// included.
func (l *Live[T]) Settings() []Setting { return slices.Clone(*l.settings.Load()) }

// All returns every key with its value and its source, in the order of the fields of T. A
// key without any source has its default, and the source "default". In an App, a key of
// lifecycle that the App takes over only at its next start also has the value in force.
// Values of secrets are "[secret]". It may be the Settings of a presence.Config, which shows
// them to operators.
func (l *Live[T]) All() []Setting {
	given := map[string]Setting{}
	for _, s := range *l.settings.Load() {
		given[s.Key] = s
	}
	all := slices.Clone(l.unset)
	for i, s := range all {
		if g, ok := given[s.Key]; ok {
			all[i] = g
		}
		n := l.loader.schema.keys[s.Key]
		if l.attached.Load() && n.lifecycle && !n.live && all[i].Value != l.start[i].Value {
			all[i].InForce = l.start[i].Value
		}
	}
	return all
}

// Check registers a function that may refuse a change: when it returns an error,
// nothing changes. It is called after T's own Validate, and must not call Reload.
func (l *Live[T]) Check(fn func(old, next T) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checks = append(l.checks, fn)
}

// OnChange registers a function that is called after each change, when Get already
// returns the new value. Functions are called one at a time, in the order of
// registration, and must not call Reload.
func (l *Live[T]) OnChange(fn func(old, next T)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, fn)
}

// Attach connects the configuration to app: it is loaded again on SIGHUP, on
// [lifecycle.App.Reload], and when its file changes. A changed file calls no other function of
// [lifecycle.App.OnReload]; Live calls the functions of OnChange. The lifecycle section goes to
// [lifecycle.App.Reconfigure], which may refuse it. Attach adds a reload and a unit,
// both named "config". Call it once, before Run. It returns app.
//
// The App's configuration must be the section that Load returned. If the program
// changes a value of it, the same value belongs in T's WithDefaults; otherwise the
// first reload undoes the change.
func (l *Live[T]) Attach(app *lifecycle.App) *lifecycle.App {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.app = app
	l.attached.Store(true)
	app.OnReload("config", l.Reload)
	return app.Go("config", func(ctx context.Context) error {
		return l.Watch(ctx, func(ctx context.Context) error { return app.Reload(ctx, "config") })
	})
}

// Reload reads the file again, on top of the defaults and below the environment and
// flags of the start. It takes over the whole result, or nothing when anything is
// wrong. The error comes from [Load], from the first check that refused, or from the App.
// Reload logs the changes, without secrets, and the keys of lifecycle that a running
// App does not take over. A key that no source gives any more gets its default again. A
// warning names the keys whose values changed for that reason, because the file may be
// truncated. Reload waits for a reload that runs. It ignores ctx, because no step takes
// long.
func (l *Live[T]) Reload(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.current.Load()
	before, seen := l.loader.settings, l.loader.looks
	next, err := loadOnce[T](l.loader)
	if err != nil {
		return err
	}
	changes := l.loader.diff(reflect.ValueOf(old).Elem(), reflect.ValueOf(&next).Elem())
	for i, c := range changes {
		changes[i].gone = hasKey(before, c.key) && !hasKey(l.loader.settings, c.key)
	}
	err = l.apply(*old, next, changes)
	if err != nil {
		l.loader.settings = before
		if errors.Is(err, lifecycle.ErrReloadRefused) {
			l.loader.looks = seen // the App has not taken the change: Watch tries again
		}
		return err
	}
	settings := l.loader.settings
	l.settings.Store(&settings)
	return nil
}

// apply asks the checks and the App, which may refuse, and then makes the change.
func (l *Live[T]) apply(old, next T, changes []change) error {
	log := l.loader.log()
	if len(changes) == 0 {
		log.Debug("config: read again, and nothing has changed", "file", l.loader.file)
		return nil
	}
	for _, check := range l.checks {
		if err := check(old, next); err != nil {
			return &Fault{Source: l.loader.file, Problem: "the change is refused: " + err.Error(), Err: err}
		}
	}
	waiting, err := l.reconfigure(next)
	if err != nil {
		return err
	}
	l.current.Store(&next)
	for _, fn := range l.changed {
		fn(old, next)
	}
	words := make([]string, len(changes))
	var gone []string
	for i, c := range changes {
		words[i] = c.String()
		if c.gone {
			gone = append(gone, c.key)
		}
	}
	log.Info("config: changed", "file", l.loader.file, "changes", strings.Join(words, ", "))
	if len(gone) > 0 {
		log.Warn("config: these keys are no longer given and have their defaults",
			"file", l.loader.file, "keys", strings.Join(gone, ", "))
	}
	waiting = slices.DeleteFunc(waiting, func(key string) bool {
		return !slices.ContainsFunc(changes, func(c change) bool { return c.key == key })
	})
	if len(waiting) > 0 {
		log.Warn("config: some changes take effect only when the process is started again",
			"keys", strings.Join(waiting, ", "))
	}
	return nil
}

// reconfigure passes the lifecycle section to the App, and returns the keys that a
// running App does not take over.
func (l *Live[T]) reconfigure(next T) (waiting []string, err error) {
	section := l.loader.schema.lifecycle()
	if l.app == nil || section == nil {
		return nil, nil
	}
	v, ok := lookup(reflect.ValueOf(&next).Elem(), l.loader.schema.root, section)
	if !ok {
		return nil, nil
	}
	var cfg lifecycle.Config // the zero, all defaults, when the section is a nil pointer
	if v = reflect.Indirect(v); v.IsValid() {
		cfg, _ = v.Interface().(lifecycle.Config)
	}
	_, kept, err := l.app.Reconfigure(cfg)
	if errors.Is(err, lifecycle.ErrReloadRefused) {
		return nil, err
	} else if err != nil {
		// The App keeps some values that the file no longer has.
		settings := slices.Clone(l.loader.settings)
		for i, s := range settings {
			if n := l.loader.schema.keys[s.Key]; n != nil && n.lifecycle && !n.live {
				settings[i].Source = "the start of the process"
			}
		}
		var faults []error
		for _, part := range parts(err) {
			faults = append(faults, explain(part, section, settings))
		}
		return nil, errors.Join(faults...)
	}
	for _, field := range kept {
		if n := section.field(field); n != nil {
			waiting = append(waiting, n.key)
		}
	}
	return waiting, nil
}

// change is one key whose value has changed.
type change struct {
	key, from, to string
	gone          bool // it was given before, and is not any more
}

func (c change) String() string { return c.key + ": " + c.from + " -> " + c.to }

func hasKey(settings []Setting, key string) bool {
	return slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == key })
}

// diff lists the keys whose values differ, in the order of the fields.
func (l *loader) diff(old, next reflect.Value) (changes []change) {
	for _, n := range l.schema.leaves {
		before, had := lookup(old, l.schema.root, n)
		after, has := lookup(next, l.schema.root, n)
		if had == has && (!had || reflect.DeepEqual(before.Interface(), after.Interface())) {
			continue
		}
		c := change{key: n.key, from: "none", to: "none"}
		if had {
			c.from = renderDefault(before, n)
		}
		if has {
			c.to = renderDefault(after, n)
		}
		changes = append(changes, c)
	}
	return changes
}

// renderDefault is render, except that zeros of lifecycle.Config are shown as their
// defaults.
func renderDefault(v reflect.Value, n *node) string {
	if n.lifecycle && v.IsZero() {
		return "its default"
	}
	return render(v, n)
}
