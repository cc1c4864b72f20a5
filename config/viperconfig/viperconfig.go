// Package viperconfig loads a configuration from viper, as strictly as from a file:
//
//	v := viper.New() // filled by the program: files, environment, flags, a remote store
//	cfg, err := config.Load[Config]("", viperconfig.From(v))
//
// A program that decodes with viper's own Unmarshal keeps that, and has the section
// lifecycle checked:
//
//	err := v.Unmarshal(&cfg, viperconfig.Strict())
//
// Viper itself drops a key without a value, and writes all keys in small letters. It
// does not say whether a value is from a file or from the environment, so a text counts
// as a number, a duration or a list too. Use viper's default delimiter, the dot.
package viperconfig

import (
	"errors"
	"reflect"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
)

// From is the option of config.Load for a viper that the program fills itself. Load
// reads it each time, also in a reload; it calls no method that changes it. The values
// come from v.Get: v decides which source wins. A variable counts for every key of
// the configuration when v has AutomaticEnv, and not only for the keys that v knows.
//
// All keys of v have to be keys of the configuration, unless the option config.WithSection
// is given. So bind only flags of the configuration; a flag that was not given does not count.
func From(v *viper.Viper) config.Option {
	return config.From(config.Source{Name: "viper", Text: true, Read: func(keys []string) (map[string]any, error) {
		if v == nil {
			return nil, errors.New("there is no viper")
		}
		settings := v.AllSettings()
		for _, key := range v.AllKeys() {
			if !v.IsSet(key) {
				drop(settings, strings.Split(key, ".")) // the default of a flag
			}
		}
		for _, key := range keys {
			path := strings.Split(key, ".")
			rename(settings, path)
			if !v.IsSet(key) {
				continue
			}
			if value := v.Get(key); value != nil && reflect.ValueOf(value).Kind() != reflect.Map {
				put(settings, path, value)
			}
		}
		return settings, nil
	}})
}

// rename gives a key, and the sections around it, the capitals of path: viper has small
// letters only.
func rename(tree map[string]any, path []string) {
	small := strings.ToLower(path[0])
	if value, ok := tree[small]; ok {
		delete(tree, small)
		tree[path[0]] = value
	}
	if below, ok := tree[path[0]].(map[string]any); ok && len(path) > 1 {
		rename(below, path[1:])
	}
}

// drop removes a key, and the sections that are then empty.
func drop(tree map[string]any, path []string) {
	if len(path) > 1 {
		below, ok := tree[path[0]].(map[string]any)
		if !ok {
			return
		}
		if drop(below, path[1:]); len(below) > 0 {
			return
		}
	}
	delete(tree, path[0])
}

// put sets a key.
func put(tree map[string]any, path []string, value any) {
	for ; len(path) > 1; path = path[1:] {
		below, ok := tree[path[0]].(map[string]any)
		if !ok {
			below = map[string]any{}
			tree[path[0]] = below
		}
		tree = below
	}
	tree[path[0]] = value
}

// Strict is an option of viper's Unmarshal and UnmarshalKey. Each lifecycle.Config in
// the result is then decoded and checked as config.Load does it: an unknown key, a
// duration without its unit and a budget that does not add up are errors, and 0 and off
// turn a duration off. Everything else is decoded as before: a key that viper does not have
// keeps the value that the program has set. An empty text counts as no value, because
// viper has it for a flag that was not given. A lifecycle.Config that mapstructure
// squashes into the struct around it is not checked: give it a name.
func Strict() viper.DecoderConfigOption {
	return func(c *mapstructure.DecoderConfig) {
		hooks := []mapstructure.DecodeHookFunc{mapstructure.DecodeHookFuncValue(decodeStrictly)}
		if c.DecodeHook != nil {
			hooks = append(hooks, c.DecodeHook)
		}
		c.DecodeHook = mapstructure.ComposeDecodeHookFunc(hooks...)
	}
}

// decodeStrictly decodes a section on top of the values that to has.
func decodeStrictly(from, to reflect.Value) (any, error) {
	section, ok := from.Interface().(map[string]any)
	if to.Type() != reflect.TypeFor[lifecycle.Config]() || !ok {
		return from.Interface(), nil
	}
	read := func([]string) (map[string]any, error) {
		given := map[string]any{}
		for field, value := range to.Fields() {
			if !value.IsZero() {
				given[field.Tag.Get("koanf")] = value.Interface()
			}
		}
		for key, value := range section {
			if value != "" {
				given[key] = value
			}
		}
		return given, nil
	}
	return config.Load[lifecycle.Config]("", config.From(config.Source{Name: "viper", Text: true, Read: read}))
}
