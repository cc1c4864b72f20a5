package httpdrain

import (
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/models"
)

// Goodbyes at any time, to clients that send until they have heard of them, go along the model.
func TestGoodbyesConformToTheModel(t *testing.T) {
	var records [][]models.Event
	for i := range uint64(60) {
		var mu sync.Mutex // guards random and record
		random := rand.New(rand.NewPCG(i, 0))
		within := func(most time.Duration) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(1 + random.Int64N(int64(most)))
		}
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(within(2 * goAwayWait))
			hello(w, r)
		}
		inTime(t, Config{}, func(srv *http.Server) { srv.Handler = http.HandlerFunc(slow) }, func(t *testing.T, s *Server, connect func() *h2client) {
			var record []models.Event
			note := func(life int, state string) {
				mu.Lock()
				defer mu.Unlock()
				record = append(record, models.Event{Life: life, State: state})
			}
			c := connect()
			var all sync.WaitGroup
			heard := make(chan struct{}) // the client's program knows of the goodbye
			all.Go(func() {
				for n := 1; n <= 3; n++ {
					select {
					case <-heard:
						return
					case <-time.After(within(2 * goAwayWait)):
						note(n, "asks")
						c.get(uint32(2*n - 1))
					}
				}
			})
			all.Go(func() {
				time.Sleep(within(5 * goAwayWait))
				s.sayGoodbyeHTTP2()
				time.Sleep(within(5 * goAwayWait))
				s.insistHTTP2()
			})
			for f, open := c.next(); open; f, open = c.next() {
				switch {
				case f.kind == framePing:
					note(0, "acknowledge")
					c.send(pongFrame)
				case f.kind == frameGoAway:
					if last := binary.BigEndian.Uint32([]byte(f.payload)); last != lastOfAll {
						note(int(last+1)/2, "final")
						continue
					}
					note(0, "first")
					time.AfterFunc(within(actTime/2), func() { close(heard) })
				case f.flags&flagEndStream != 0:
					note(0, "answers")
				}
			}
			all.Wait()
			records = append(records, record)
		})
	}
	models.Conform(t, "goodbye", records)
}
