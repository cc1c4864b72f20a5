package presence

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// purpose is what an announcement is sealed for.
func (a *announcer) purpose() string { return entryPurpose(a.cfg, a.cfg.ID) }

// farewell removes the process's entry. It is the message that [jetstream.KeyValue.Purge]
// sends, with a sealed body: watchers believe no other.
func (a *announcer) farewell(ctx context.Context) error {
	m := nats.NewMsg("$KV." + a.cfg.Bucket + "." + a.cfg.ID)
	if prefix := a.js.Options().APIPrefix; prefix != "" && prefix != jetstream.DefaultAPIPrefix {
		m.Subject = strings.TrimSuffix(prefix, ".") + "." + m.Subject
	} else if domain := a.js.Options().Domain; domain != "" {
		m.Subject = "$JS." + domain + ".API." + m.Subject
	}
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	body, err := json.Marshal(Process{ID: a.cfg.ID, Number: a.number + 1})
	if err != nil {
		return err
	}
	m.Data = seal(a.key, a.purpose(), body)
	_, err = a.js.PublishMsg(ctx, m)
	return err
}
