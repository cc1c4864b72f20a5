package broker

import "time"

// SyncOf returns what the running server says of its writes.
func SyncOf(b *Broker) (always bool, every time.Duration) {
	cfg := b.srv.JetStreamConfig()
	return cfg.SyncAlways, cfg.SyncInterval
}
