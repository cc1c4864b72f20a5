// Package rest measures what a service costs while it has nothing to do, beside the same
// service with net/http alone: the size of the program, the memory, the wakeups, the
// goroutines, and the time from exec until it runs. The programs are in testdata.
package rest
