// Package sdk has the worker's sides of a process pool in other languages than
// Go, as files that a program can carry with it.
package sdk

import _ "embed" // of the files

// Python is lifecycle_worker.py: one file without dependencies, for Python 3.7
// and later. Put it where Python finds it, beside the program that imports it.
//
//go:embed python/lifecycle_worker.py
var Python string
