//go:build !linux

package sdnotify

// Monotonic returns "": there is no systemd here.
func Monotonic() string { return "" }
