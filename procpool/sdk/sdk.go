// Package sdk has the worker's side of a process pool for languages other than Go,
// as files that a program can embed.
package sdk

import _ "embed" // of the files

// Python is lifecycle_worker.py: one file without dependencies, for Python 3.7
// and later. Put it where Python finds it, beside the program that imports it.
//
//go:embed python/lifecycle_worker.py
var Python string
