package e2e

import (
	"context"
	"sync"
	"testing"
	"time"
)

// load starts the crowds on the Service. No request may be lost.
func (d *deployed) load(t *testing.T, crowds ...crowd) *load {
	t.Helper()
	return startLoad(t.Context(), d.addr, d.evidence(t), crowds...)
}

// evidence returns a function to call when a request was lost that should not
// be. The first time it records short-lived facts: the rules
// of kube-proxy for the pods, and where refused connections
// ended. A connection that a pod refused was translated to the address
// of that pod. One that this node refused, because it had no rule for a pod at
// that moment, was not, and no pod could have prevented it.
func (d *deployed) evidence(t *testing.T) (onLoss func()) {
	var once sync.Once
	var taken sync.WaitGroup
	t.Cleanup(taken.Wait)
	return func() {
		once.Do(func() {
			taken.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				began := time.Now()
				port := d.addr[len("127.0.0.1:"):]
				out, err := command(ctx, nil, "sh", "-c",
					"conntrack -L -p tcp --orig-port-dst "+port+" 2>/dev/null | grep -E ' (CLOSE|SYN_SENT) '; iptables-save 2>/dev/null | grep -F "+d.namespace+"/"+d.name)
				t.Logf("at the first loss, %s (within %v):\n%s%v", began.Format(time.StampMicro), time.Since(began).Round(time.Millisecond), out, err)
			})
		})
	}
}
