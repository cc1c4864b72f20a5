package presence

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/redact"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/setting"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Setting is one key of a process's configuration: a config.Setting. Its fields are texts:
// the Key; its Value; the Source of that; the values of earlier sources that it replaced,
// Lost; and InForce, the value that the running process has when it takes Value only at its
// next start.
type Setting = setting.Setting

// Settings is the configuration of a process, as the process itself reports it.
type Settings struct {
	// List has every key, in the process's own order. Secrets are "[secret]".
	List []Setting
	// Truncated says that keys, or the ends of long texts, were left out.
	Truncated bool
	// Reloads are the process's latest reloads, the newest last: a refused one has the reason.
	Reloads []lifecycle.Outcome
}

// Limits of one answer.
const (
	maxSettings      = 2000      // keys
	maxSettingsBytes = 512 << 10 // of their JSON
	maxSettingText   = 1 << 10   // bytes of one text
	maxRead          = 8 << 10   // bytes of one text in which secrets are looked for
	maxLost          = 8         // replaced values of one key
)

// Settings returns the configuration of a process: each key with its value and its source,
// and how its reloads went. Secrets never leave the process. ErrRefused is returned when the
// process has no Config.Settings.
func (f *Fleet) Settings(ctx context.Context, id, who string) (Settings, error) {
	a, err := f.ask(ctx, id, command{Do: doConfig, Who: who})
	return Settings{a.Settings, a.Truncated, a.Reloads}, err
}

// configuration fills in what the process knows of its configuration.
func (a *announcer) configuration(out *answer) (refused string) {
	if a.cfg.Settings == nil {
		return "this process does not report its configuration: it has no presence.Config.Settings"
	}
	list, err := call.Ask(&a.settings, "presence.Config.Settings", a.cfg.Settings)
	if err != nil {
		return text.Clip(err.Error(), maxReason)
	}
	out.Settings, out.Truncated = shown(list)
	out.Reloads = a.app.Report().Reloads
	for i := range out.Reloads {
		out.Reloads[i].Stack = ""
		out.Reloads[i].Error = text.Clip(redact.Text(text.Clip(out.Reloads[i].Error, maxRead)), maxSettingText)
	}
	return ""
}

// shown returns settings without what looks like a secret, and small enough for a message.
func shown(list []Setting) (out []Setting, truncated bool) {
	size := 0
	for _, s := range list {
		if len(out) == maxSettings || size > maxSettingsBytes {
			return out, true
		}
		secret := redact.Named(s.Key)
		show := func(field *string) {
			if len(*field) > maxSettingText {
				truncated = true
			}
			// A secret that is cut in two would not look like one.
			*field = text.Clip(redact.Text(text.Clip(*field, maxRead)), maxSettingText)
		}
		showValue := func(field *string) {
			if secret && *field != "" && *field != "none" && *field != `""` {
				*field = "[secret]"
			}
			show(field)
		}
		show(&s.Key)
		showValue(&s.Value)
		show(&s.Source)
		showValue(&s.InForce)
		lost := s.Lost[:min(len(s.Lost), maxLost)]
		truncated = truncated || len(s.Lost) > maxLost
		s.Lost = nil
		for _, one := range lost {
			if source, _, ok := strings.Cut(one, ": "); ok && secret {
				one = source + ": [secret]"
			}
			show(&one)
			s.Lost = append(s.Lost, one)
		}
		if encoded, err := json.Marshal(s); err == nil { // texts can always be encoded
			size += len(encoded)
		}
		out = append(out, s)
	}
	return out, truncated
}
