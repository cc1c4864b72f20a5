// Package setting describes where the value of a key of a configuration came from. The
// package config makes settings, and fleet/presence passes them on to operators.
package setting

// Setting says where the value of one key came from.
type Setting struct {
	// Key is the whole key, such as "lifecycle.drain_interval".
	Key string `json:"key"`
	// Value is the value that counts, as text; "[secret]" for a secret.
	Value string `json:"value"`
	// Source is where it was given: "service.yaml:3", "environment NAME", "flag -name",
	// the name of a config.Source, or "default".
	Source string `json:"source"`
	// Lost lists the values of earlier sources, first to last, as "SOURCE: VALUE".
	Lost []string `json:"lost,omitempty"`
	// InForce is the value that the running App has, when it takes Value only at its next
	// start; "" otherwise. Only config.Live.All sets it.
	InForce string `json:"inForce,omitempty"`
}
