package workflow

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// UpdateFromOperator sets fields of an entity, by their JSON names. Only fields
// tagged operator_writable may be set, each to a value of the field's own type.
// Otherwise the whole patch is refused and nothing is written. An empty patch is an
// error.
//
// It returns ErrFieldNotOperatorWritable or ErrFieldType for the first wrong field,
// by name, and the errors of Update. With [IfMatch] it refuses a patch that was made
// for another revision. With [DryRun] it returns the result without writing it.
func (m *Manager) UpdateFromOperator(
	ctx context.Context, workflow, entityID string, patch map[string]any, opts ...WriteOption,
) (err error) {
	defer wrap(&err, "patch %s %q", workflow, entityID)
	r, err := m.registration(workflow)
	if err != nil {
		return err
	}
	if len(patch) == 0 {
		return fmt.Errorf("%w: the patch is empty: writable are %s", ErrFieldNotOperatorWritable, r.writable())
	}
	for _, name := range slices.Sorted(maps.Keys(patch)) {
		f, err := r.writableField(name)
		if err != nil {
			return err
		}
		if !assignable(patch[name], f.typ) {
			return fmt.Errorf("%w: %s is a %v, and the value a %T", ErrFieldType, name, f.typ, patch[name])
		}
	}
	return m.mutate(ctx, r, entityID, options(opts), keepPhase, func(p Participant) error {
		for name, value := range patch {
			f := r.fields.byName[name]
			to := reflect.Zero(f.typ)
			if value != nil {
				to = reflect.ValueOf(value)
			}
			f.of(p).Set(to)
		}
		return nil
	})
}

// assignable reports whether a value may be assigned to a field without conversion.
// nil may be assigned to a type that has nil.
func assignable(value any, typ reflect.Type) bool {
	if value != nil {
		return reflect.TypeOf(value).AssignableTo(typ)
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return false
}

// writableField returns a field that operators and rules may set.
func (r *registration) writableField(name string) (*field, error) {
	f := r.fields.byName[name]
	switch {
	case f == nil:
		return nil, fmt.Errorf("%w: %q has no field %q: writable are %s",
			ErrFieldNotOperatorWritable, r.workflow, name, r.writable())
	case !f.writable:
		return nil, fmt.Errorf("%w: %s: writable are %s", ErrFieldNotOperatorWritable, name, r.writable())
	}
	return f, nil
}

func (r *registration) writable() string {
	names := r.def().OperatorWritableFields
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// AssertRuleWritable returns nil when rules may set the field. They may set the
// fields that operators may. It returns ErrFieldNotOperatorWritable for other fields
// and for unknown ones, or ErrWorkflowNotRegistered.
func (m *Manager) AssertRuleWritable(workflow, fieldJSONName string) error {
	_, err := m.FieldType(workflow, fieldJSONName)
	return err
}

// FieldType returns the type of a field that rules may set. It returns the errors of
// AssertRuleWritable.
func (m *Manager) FieldType(workflow, fieldJSONName string) (reflect.Type, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, err
	}
	f, err := r.writableField(fieldJSONName)
	if err != nil {
		return nil, err
	}
	return f.typ, nil
}

// StoredFieldType returns the type that a field's value must have in
// [ListOptions].Match, also for read-only fields. It returns false for a field that
// JSON does not store under this name, and for a workflow that is not registered.
func (m *Manager) StoredFieldType(workflow, fieldJSONName string) (reflect.Type, bool) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, false
	}
	f := r.fields.byName[fieldJSONName]
	if f == nil {
		return nil, false
	}
	return f.typ, true
}
