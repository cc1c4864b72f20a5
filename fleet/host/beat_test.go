package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestARefusedHeartbeatIsToldByCheck has a server that takes no heartbeat of a host, and later does.
// Without one the host holds no worker.
func TestARefusedHeartbeatIsToldByCheck(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.LeaseTTL = 3 * time.Second }
	h := r.start("a")
	stream, err := r.js.Stream(t.Context(), "KV_HOST_MEMBERS")
	must(t, err)
	bound := func(size int32) {
		t.Helper()
		cfg := stream.CachedInfo().Config
		cfg.MaxMsgSize = size
		_, err := r.js.UpdateStream(t.Context(), cfg)
		must(t, err)
	}
	bound(1)
	r.eventually("the check says that the server refuses the heartbeat", func() bool {
		err := h.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "heartbeat") && strings.Contains(err.Error(), "exceeds")
	})
	bound(stream.CachedInfo().Config.MaxMsgSize)
	r.eventually("the check is well again", func() bool { return h.Check(t.Context()) == nil })
}
