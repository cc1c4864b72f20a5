package broker

import "time"

// SyncOf returns how the running server syncs its writes.
func SyncOf(b *Broker) (always bool, every time.Duration) {
	cfg := b.server().JetStreamConfig()
	return cfg.SyncAlways, cfg.SyncInterval
}

// ShutJetStreamDown does to the running server what it does itself when a mirror cannot
// write to a full disk.
func ShutJetStreamDown(b *Broker) error { return b.server().ShutdownJetStream() }
