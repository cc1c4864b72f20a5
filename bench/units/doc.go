// Package units measures what it takes to start units of work and to take them
// down.
package units
