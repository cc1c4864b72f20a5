//go:build !linux

package sdnotify

// Monotonic returns "", because this system has no systemd.
func Monotonic() string { return "" }
