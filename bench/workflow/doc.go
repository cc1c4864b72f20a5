// Package workflow compares the cost of durable lifecycles with that of the key-value
// writes that they are made of, and with another implementation of the same interface.
package workflow
