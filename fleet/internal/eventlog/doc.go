// Package eventlog keeps records in a JetStream stream for a time, and reads them
// backwards, in pages. The journal of the fleet (package presence) and the audit of the
// operators' server (package operator) are such logs. A page is read in windows that grow,
// from the newest records on, by package replay.
//
// Begin with [Open]; [Log.Append] stores a record and [Log.Back] reads a page. [Readings]
// tells when a reading begins, so that a log does not note each look.
package eventlog
