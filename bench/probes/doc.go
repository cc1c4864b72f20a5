// Package probes measures health planes: the cost of a probe when checks return
// at once, and what happens to fifty probers when one does not.
package probes
