package worker

import (
	"context"
	"reflect"
	"testing"
	"time"
)

// Children share a spec only when every field but the Name and the New is the same.
func TestChildrenShareASpecThatIsTheSame(t *testing.T) {
	values := map[reflect.Type]any{
		reflect.TypeFor[Restart]():                           Never,
		reflect.TypeFor[Backoff]():                           Backoff{Min: time.Second},
		reflect.TypeFor[time.Duration]():                     time.Second,
		reflect.TypeFor[int]():                               1,
		reflect.TypeFor[bool]():                              true,
		reflect.TypeFor[uintptr]():                           uintptr(1),
		reflect.TypeFor[func(context.Context) ProbeResult](): func(context.Context) ProbeResult { return ProbeResult{} },
	}
	if !new(Spec).same(Spec{}) {
		t.Error("a spec is not the same as itself")
	}
	for field := range reflect.TypeFor[Spec]().Fields() {
		if field.Name == "Name" || field.Name == "New" {
			continue
		}
		value, ok := values[field.Type]
		if !ok {
			t.Fatalf("%s is a %v: the test has no value for it", field.Name, field.Type)
		}
		spec := Spec{}
		if field.IsExported() {
			reflect.ValueOf(&spec).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(value))
		} else {
			spec.made = 1 // the only one
		}
		if new(Spec).same(spec) {
			t.Errorf("a spec with another %s is the same", field.Name)
		}
	}
}
