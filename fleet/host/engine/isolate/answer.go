package isolate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
)

// err returns the error that the answer stands for.
func (a *answer) err(l engine.Limits) error {
	switch {
	case a.Limit != "":
		var err error
		switch a.Limit {
		case "time":
			err = l.TimeLimit()
		case "memory":
			err = l.MemoryLimit()
		case "outputs":
			err = &engine.LimitError{What: "outputs", Limit: fmt.Sprintf("%d messages", l.Outputs)}
		case "load time":
			err = &engine.LimitError{What: a.Limit, Limit: l.Load.String()}
		default:
			err = l.OutputLimit()
		}
		if a.Error != "" {
			err = fmt.Errorf("%w: %s", err, a.Error)
		}
		return err
	case a.Reject != "":
		return engine.Reject(a.Reject)
	case a.BadCode:
		return engine.BadCode(errors.New(a.Error))
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// outputs returns the messages of the answer.
func (a *answer) outputs() ([]engine.Output, error) {
	if a.Result != nil {
		var v any
		if err := json.Unmarshal(a.Result, &v); err != nil {
			return nil, fmt.Errorf("the handler's result: %w", err)
		}
		return value.Outputs(plain(v))
	}
	return a.Outputs, nil
}

// plain replaces an interpreter's marks with the values that they stand for.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["$type"].(string); ok {
			return value.Named(name)
		}
		if text, ok := v["$bytes"].(string); ok {
			var data []byte
			if err := json.Unmarshal([]byte(strconv.Quote(text)), &data); err == nil {
				return data
			}
		}
		for key, one := range v {
			v[key] = plain(one)
		}
	case []any:
		for i, one := range v {
			v[i] = plain(one)
		}
	}
	return v
}
