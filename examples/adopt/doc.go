// Package adopt tests the programs below it: services and operators on other libraries, and
// the same moved to this one. docs/migration.md shows them.
package adopt
