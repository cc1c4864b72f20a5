package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// hold stores a message of a group when no member for its topic is loaded, so that
// the message does not hold up the group. slot.giveBack publishes it again once such
// a member is loaded.
func (h *Host) hold(ctx context.Context, slot string, d *delivery) error {
	return h.letters.put(ctx, h.letters.held+slot, slot+":"+messageKey(d), &DeadLetter{
		Reason: "no worker for it is running", Topic: d.topic, Message: d.id, Header: d.header, Data: d.data,
	})
}

// giveBack publishes again the messages of this group that were held because no
// member for their topic was loaded, and for which members has one now.
func (s *slot) giveBack(ctx context.Context, members []*member) error {
	if !strings.HasPrefix(s.name, "g-") || len(members) == 0 {
		return nil
	}
	l := s.host.letters
	err := l.each(ctx, l.held+s.name, 1, func(d *DeadLetter) (bool, error) {
		if !slices.ContainsFunc(members, func(m *member) bool { return matches(m.record.Topic, d.Topic) }) {
			return true, nil
		}
		_, err := l.redrive(ctx, d, s.name, "")
		return true, err
	})
	if err != nil {
		return fmt.Errorf("group %s: messages that were held: %w", s.name, err)
	}
	return nil
}
