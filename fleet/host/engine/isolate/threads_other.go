//go:build !linux

package isolate

// threadWatch watches nothing: only Linux has a floor.
type threadWatch struct{}

func (*threadWatch) add(*process)    {}
func (*threadWatch) remove(*process) {}
