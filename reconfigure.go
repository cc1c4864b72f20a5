package lifecycle

import (
	"errors"
	"fmt"
	"reflect"
)

// IsLive reports whether a running App takes on a change of the field of [Config]
// with this name, by [App.Reconfigure].
func IsLive(field string) bool {
	f, ok := reflect.TypeFor[Config]().FieldByName(field)
	return ok && f.Tag.Get("reload") == "live"
}

// Reconfigure takes over cfg in a running App, as far as a running one can: the
// fields with the tag reload:"live", which are what a drain and a shutdown are
// made of. All of them change or, on error, none. It returns the names of the
// fields that have changed, and of those that differ and stay as they are until
// the process is started again.
//
// The error is that of [Config.Validate], for cfg and for what the App would have
// then, or [ErrReloadRefused] when the App is not running: a stop that has begun
// keeps its times.
func (a *App) Reconfigure(cfg Config) (changed, kept []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	if cfg.Name == "" {
		cfg.Name = a.cfg.Name // which never changes
	}
	cfg = cfg.WithDefaults()
	kept = a.otherToken(&cfg)
	if a.phases.State() != PhaseRunning {
		return nil, nil, ErrReloadRefused
	}
	// Under the lock of the stop: the stop that begins next reads these times.
	if !a.stop.unlessBegun(func() { changed, kept, err = a.takeOver(cfg, kept) }) {
		return nil, nil, ErrReloadRefused
	}
	return changed, kept, err
}

// takeOver is Reconfigure once it is sure that no stop has begun.
func (a *App) takeOver(cfg Config, kept []string) (_, _ []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var changed []string
	next := a.cfg
	from, to := reflect.ValueOf(cfg), reflect.ValueOf(&next).Elem()
	for i := range from.NumField() {
		if from.Field(i).Equal(to.Field(i)) {
			continue
		}
		name := from.Type().Field(i).Name
		if !IsLive(name) {
			kept = append(kept, name)
			continue
		}
		to.Field(i).Set(from.Field(i))
		changed = append(changed, name)
	}
	slice, err := minSlice(next, a.hooks.len())
	if err := errors.Join(next.Validate(), err); err != nil {
		return nil, nil, fmt.Errorf("together with what stays as it is: %w", err)
	}
	// A goroutine that reads these from T0 on has seen the request, which needs the
	// lock of the stop. The other fields are read without a lock at any time, and so
	// are not written, not even with the same value.
	for _, name := range changed {
		reflect.ValueOf(&a.cfg).Elem().FieldByName(name).Set(to.FieldByName(name))
	}
	a.hooks.minSlice = slice
	for _, s := range a.parts.servers {
		s.Configure(drainConfig(next))
	}
	return changed, kept, nil
}

// otherToken takes the admin token out of cfg, as New does, and names its field
// when it is another than the App's. A Config without one, as [App.Config]
// returns it, has no opinion.
func (a *App) otherToken(cfg *Config) (kept []string) {
	given := string(cfg.AdminToken)
	cfg.AdminToken = ""
	if given == "" {
		return nil
	}
	if a.token != nil && a.cfg.AdminTokenFile == "" {
		if token, err := a.token(); err == nil && token == given {
			return nil
		}
	}
	return []string{"AdminToken"}
}
