package vet

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// environment puts the variables that the manifest gives to the service's container
// on top of the configuration, as config.Load does: SERVICE_LIFECYCLE_DRAIN_INTERVAL
// is lifecycle.drain_interval, with any name in place of SERVICE. It leaves out what
// the manifest does not say: a value from another object, or one made of another
// variable. The keys of the variables and their places are in w.given.
func (r *run) environment(w *workload) {
	w.cfg, w.given = r.Config, map[string]path{}
	if len(w.pod.Containers) == 0 {
		return
	}
	main := r.main(w)
	c := container{r, w, &w.pod.Containers[main], w.podPath.with("containers", main)}
	for i, e := range c.c.Env {
		key, field := keyOfVariable(e.Name)
		if key == "" || e.ValueFrom != nil || strings.Contains(e.Value, "$(") {
			continue
		}
		if want := decodeVariable(reflect.ValueOf(&w.cfg).Elem().FieldByIndex(field.Index), e.Value); want != "" {
			c.fault("config-refused", fmt.Sprintf("%s is %q, want %s", e.Name, e.Value, want), "set "+e.Name+" to a valid value, or remove it", "env", i, "value")
			w.senseless = true
			continue
		}
		w.given[key] = c.path.with("env", i, "value")
	}
}

// keyOfVariable returns the key of a variable and its field in the configuration. The
// key is "" when the variable is not one of lifecycle's, and when it has a secret, which
// says nothing about a manifest.
func keyOfVariable(name string) (key string, field reflect.StructField) {
	_, last, ok := strings.Cut("_"+name, "_LIFECYCLE_")
	if !ok {
		return "", field
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[lifecycle.Config]()) {
		if f.Type != reflect.TypeFor[lifecycle.Secret]() && strings.EqualFold(f.Tag.Get("koanf"), last) {
			return keyOf(f.Name), f
		}
	}
	return "", field
}

// decodeVariable sets v to the text of a variable, as config.Load does. It returns
// what the key wants, or "" when the text fits.
func decodeVariable(v reflect.Value, text string) (want string) {
	switch v.Kind() {
	case reflect.Int64:
		d, err := time.ParseDuration(text)
		if text == "off" || err == nil && d == 0 {
			d = lifecycle.Off
		} else if err != nil || d < 0 {
			return "a duration with its unit, such as 5s or 1m30s, or off"
		}
		v.SetInt(int64(d))
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return "true or false"
		}
		v.SetBool(b)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return "a number, such as 0.9"
		}
		v.SetFloat(f)
	default:
		v.SetString(text)
	}
	return ""
}
