//go:build !linux

package child

func dieWithParent() {}
