// Package probes measures health planes: what a probe costs when checks return
// at once, and what happens to fifty probers when one does not.
package probes
