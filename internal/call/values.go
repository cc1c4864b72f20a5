package call

import "context"

// WithValuesOf returns ctx with the values of another context behind its own. It ends with ctx
// alone.
func WithValuesOf(ctx, behind context.Context) context.Context { return values{ctx, behind} }

type values struct {
	context.Context
	behind context.Context
}

func (v values) Value(key any) any {
	// ctx comes first: package context looks there for the context that ends this one.
	if value := v.Context.Value(key); value != nil {
		return value
	}
	return v.behind.Value(key)
}
