//go:build unix

package child_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pleme-io/lifecycle-go/procpool/child"
)

func withBytes(id, data string) string {
	return fmt.Sprintf(`{"type":"query","requestId":%q,"bytes":%d,"payload":1}`+"\n%s", id, len(data), data)
}

// TestReusedBytesAreTheHandlersUntilItReturns also has a query come while another one
// runs, which a pool of this module does not send.
func TestReusedBytesAreTheHandlersUntilItReturns(t *testing.T) {
	var places []*byte
	in, out := make(chan bool), make(chan bool)
	p := serve(t.Context(), t, func(_ context.Context, q *child.Query) (any, error) {
		places = append(places, &q.Bytes[0])
		if q.ID == "slow" {
			in <- true
			<-out
		}
		return string(q.Bytes), nil
	}, child.ReuseBytes())
	again := false // the first answer may be there before its handler's goroutine has given the memory back
	for n := 0; n < 100 && !again; n++ {
		p.say(withBytes("a", "four"))
		p.want(`"result":"four"`)
		p.say(withBytes("b", "two"))
		p.want(`"result":"two"`)
		again = places[2*n] == places[2*n+1]
	}
	if !again {
		t.Error("the memory was not used again")
	}
	p.say(withBytes("slow", "slow"))
	<-in
	p.say(withBytes("refused", "xxxx"))
	p.want(`"error":"busy: the worker takes 1 at a time"`)
	out <- true
	p.want(`"result":"slow"`)
	p.say(withBytes("c", "longer than the memory"))
	p.want(`"result":"longer than the memory"`)
	p.conn.Close()
	p.wantEnd(child.ErrPoolGone)
}
