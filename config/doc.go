// Package config loads what a service can be told, from a file, the environment
// and flags, into the service's own struct, in which lifecycle.Config is a
// section.
package config
