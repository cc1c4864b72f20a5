//go:build !before

package main

import (
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// extras are options of a write that only this release of the library has. The first
// release of the program does not use them.
func (r *release) extras() []workflow.WriteOption {
	if !r.second {
		return nil
	}
	return []workflow.WriteOption{workflow.SetTimer(workflow.Timer{Name: "check", At: time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC), Keep: true})}
}
