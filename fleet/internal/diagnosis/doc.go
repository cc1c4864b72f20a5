// Package diagnosis describes processes for people, and says what is wrong with a
// fleet. The API, the dashboard, the metrics and the command line all use it, so they
// never disagree.
//
// Begin with [Diagnose], which applies the [Rules] to a [Fleet]: rules.go has the rules about
// processes, ends, services, hosted workers and workflows, usage.go those about what a process
// uses, and store.go those about streams. arrange.go groups findings. view.go makes a Process of the API from the Status of an App. The
// package uses the API's messages (operatorv1); it keeps nothing and asks nothing.
package diagnosis
