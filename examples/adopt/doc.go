// Package adopt tests the programs below it: services and operators on other libraries, and
// the same moved to this one, which docs/guides/migrating/README.md shows.
package adopt
