package e2e

import (
	"context"
	"sync"
	"testing"
	"time"
)

// load sets the crowds to work on the Service. No request is to be lost.
func (d *deployed) load(t *testing.T, crowds ...crowd) *load {
	t.Helper()
	return startLoad(t.Context(), d.addr, d.evidence(t), crowds...)
}

// evidence returns what to call when a request was lost that should not have
// been. The first time it takes down what will be gone in a moment: the way
// that kube-proxy has laid to the pods, and where connections ended that were
// refused. A connection that a pod refused has been translated to the address
// of that pod; one that this node refused, because there was no way to a pod at
// that moment, has not, and is nothing that a pod could have done about.
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
