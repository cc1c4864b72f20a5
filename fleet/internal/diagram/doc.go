// Package diagram draws a table of states as SVG: layers from left to right, with few
// crossings. The dashboard and "lifecyclectl diagram" show its pictures. It has its
// own layout: docs/adr/0072 says why.
//
// Begin with [SVG], whose colours the page sets by class, or with [File], which contains
// its style. layout.go places the states and their edges, svg.go writes them.
package diagram
