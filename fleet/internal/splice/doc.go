// Package splice changes stored JSON as a program changed its decoded value, and
// leaves the rest of the bytes alone: members that the program does not know, numbers
// that it cannot hold exactly, the form of what it did not touch. So programs of
// several generations can write one record, and none drops what another one stored.
//
// [Of] describes the program's type, [Shape.Apply] merges a change, and [Shape.Set]
// replaces one member. Package gjson finds the members.
package splice
