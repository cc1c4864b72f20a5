//go:build before

package main

import "github.com/pleme-io/lifecycle-go/fleet/workflow"

func (r *release) extras() []workflow.WriteOption { return nil }
