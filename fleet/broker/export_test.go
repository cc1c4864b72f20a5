package broker

import "time"

// SyncOf returns how the running server syncs its writes.
func SyncOf(b *Broker) (always bool, every time.Duration) {
	cfg := b.server().JetStreamConfig()
	return cfg.SyncAlways, cfg.SyncInterval
}
