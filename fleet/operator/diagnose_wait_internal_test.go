package operator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// However long a look takes, those that wait for it take what it has found, and one whose caller has
// gone does not wait.
func TestDiagnosisIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		d := &s.diagnosed
		d.sem = make(chan struct{}, 1)
		d.sem <- struct{}{} // a look has begun
		d.at = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Diagnosis(ctx); err == nil {
			t.Error("it waits longer than its caller")
		}
		found := make(chan *operatorv1.DiagnoseResponse, 10)
		for range cap(found) {
			go func() {
				answer, err := s.Diagnosis(t.Context())
				if err != nil {
					t.Error(err)
				}
				found <- answer
			}()
		}
		time.Sleep(4 * time.Second)
		d.latest, d.ended = new(operatorv1.DiagnoseResponse), time.Now()
		<-d.sem
		for range cap(found) {
			if answer := <-found; answer != d.latest {
				t.Error("a caller that waited has made a diagnosis of its own")
			}
		}
	})
}
