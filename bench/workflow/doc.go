// Package workflow measures what durable lifecycles cost beside the key-value
// writes that they are made of, and beside another implementation of the same
// interface.
package workflow
