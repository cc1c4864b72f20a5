package lifecycle

import "time"

// ReserveForEach reserves d for every hook, as the App of a MinSlice does.
func (s *Shutdown) ReserveForEach(d time.Duration) { s.minSlice = d }
