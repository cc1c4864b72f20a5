package operator

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func FuzzTokens(f *testing.F) {
	f.Add("operator ada ada-0123456789-0123456789\n# no\n\nviewer vic sha256:" + strings.Repeat("0a", 32) + " 2030-01-01T00:00:00Z\n")
	f.Add("viewer a b c d e")
	f.Add(strings.Repeat("x", 20_000))
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseTokens([]byte(text))
		if (err == nil) == (len(list) == 0) {
			t.Errorf("%d tokens and %v", len(list), err)
		}
		for _, who := range list {
			if who.Role != RoleViewer && who.Role != RoleOperator || who.Name == "" {
				t.Errorf("an unknown token was accepted: %+v", who)
			}
		}
	})
}

func FuzzPageToken(f *testing.F) {
	f.Add(paging{}.next("m-1"))
	f.Add("e30")
	f.Add("!")
	f.Fuzz(func(t *testing.T, token string) {
		var v violations
		after := v.paging(&operatorv1.ListWorkersRequest{PageToken: token}).after
		again := v.paging(&operatorv1.ListWorkersRequest{PageToken: paging{}.next(after)}).after
		if len(v) == 0 && again != after {
			t.Errorf("%q was read as %q", token, after)
		}
	})
}

// A value that is read from a text has the requested type.
func FuzzValues(f *testing.F) {
	for _, s := range []string{"1", "-1", "1.5", "true", "1e400", "2030-01-31T12:00:00Z", "1h", "NaN", "99999999999999999999", ""} {
		f.Add(s, 0.5)
	}
	types := []reflect.Type{
		reflect.TypeFor[string](), reflect.TypeFor[bool](), reflect.TypeFor[int8](), reflect.TypeFor[uint64](), reflect.TypeFor[float32](),
		reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration](), reflect.TypeFor[[]string](), reflect.TypeFor[map[string]int](), reflect.TypeFor[*int](),
	}
	f.Fuzz(func(t *testing.T, text string, number float64) {
		for _, typ := range types {
			if v, err := FromText(text, typ); err == nil && reflect.TypeOf(v) != typ {
				t.Errorf("%q as %s is a %T", text, typ, v)
			}
			for _, value := range []*structpb.Value{structpb.NewStringValue(strings.ToValidUTF8(text, "?")), structpb.NewNumberValue(number), structpb.NewNullValue(), {}} {
				if v, err := fromValue(value, typ); err == nil && reflect.TypeOf(v) != typ {
					t.Errorf("%v as %s is a %T", value, typ, v)
				}
			}
		}
		if s, err := Fields([]byte(text)); err == nil && s == nil {
			t.Errorf("%q gives no value and no error", text)
		}
	})
}
