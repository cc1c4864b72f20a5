//go:build unix && !linux

package run

func ownProc() error { return nil } // only Linux has pid namespaces
