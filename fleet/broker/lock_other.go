//go:build !unix

package broker

// lock does nothing here: the operator must give each process a store directory
// of its own.
func lock(string) (unlock func(), err error) { return func() {}, nil }
