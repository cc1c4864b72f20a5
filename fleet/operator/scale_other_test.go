//go:build !linux

package operator_test

func scaleMain() {}
