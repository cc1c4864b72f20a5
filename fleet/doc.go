// Package fleet is the home of what many processes share and of what their
// operators use; its packages do the work.
package fleet
