//go:build !unix

package presence

import "time"

// processorTime returns 0: this system does not tell.
func processorTime() time.Duration { return 0 }
