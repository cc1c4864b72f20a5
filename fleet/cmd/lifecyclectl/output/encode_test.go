package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

var evil = "a\x1b[2Jb\u009bc\u202ed\r\ne: [x] 'y' \"z\" # - &"

func TestForeignTextDoesNotSteerTheTerminal(t *testing.T) {
	e := &operatorv1.Entity{Id: evil, Phase: evil, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{evil: structpb.NewStringValue(evil)}}}
	for _, format := range []string{"table", "json", "yaml"} {
		var b bytes.Buffer
		o := &Format{name: format}
		if err := o.Write(&b, e, func(t *Table) { t.Line("id", e.GetId()); t.Row(State(e.GetPhase()), evil) }); err != nil {
			t.Fatal(err)
		}
		if err := o.Item(&b, e); format != "table" && err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && unprintable(r) }); i >= 0 {
			t.Errorf("as %s there is %q in\n%s", format, b.String()[i:i+4], b.String())
		}
	}
}

// TestJSONAndYAMLSayTheSame checks that both encode the message that was sent.
func TestJSONAndYAMLSayTheSame(t *testing.T) {
	e := &operatorv1.Entity{
		Type: "no", Id: evil, Phase: "1.0", Etag: `"7"`, Revision: 1 << 60, Terminal: true, UpdatedAt: timestamppb.New(time.Unix(1e9, 5)),
		Next: []string{"on", "~", "", "2026-01-01", "0x1f", "multi\nline"}, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(1.5), "null": structpb.NewNullValue()}},
	}
	text, err := JSON(e, "  ")
	if err != nil {
		t.Fatal(err)
	}
	var back operatorv1.Entity
	if err := protojson.Unmarshal(text, &back); err != nil || !proto.Equal(e, &back) {
		t.Errorf("JSON is not what was sent: %v\n%s", err, text)
	}
	asY, err := YAML(e)
	if err != nil {
		t.Fatal(err)
	}
	var fromJSON, fromYAML map[string]any
	if err := json.Unmarshal(text, &fromJSON); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(asY, &fromYAML); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(fromJSON, fromYAML) {
		t.Errorf("YAML\n%s\nis %v, want %v", asY, fromYAML, fromJSON)
	}
}

func TestAges(t *testing.T) {
	now := time.Unix(1e9, 0)
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 90 * time.Minute: "90m", 47 * time.Hour: "47h", 72 * time.Hour: "3d"} {
		if got := Age(timestamppb.New(now.Add(-d)), now); got != want {
			t.Errorf("%v ago is %s, want %s", d, got, want)
		}
	}
	if Age(nil, now) != "" || Moment(nil) != "" || Moment(&timestamppb.Timestamp{}) != "" {
		t.Error("a missing time is shown as a time")
	}
}

func FuzzOutput(f *testing.F) {
	f.Add("m-1", "planning")
	f.Add(evil, "\u2028\ufeff\u0085")
	f.Add("- a\n  b:\n", "!!int 7")
	f.Add("0", "\uffff")
	f.Fuzz(func(t *testing.T, id, text string) {
		if !utf8.ValidString(id) || !utf8.ValidString(text) || len(text) > 1000 {
			return // no server sends it; YAML's parser takes shorter keys only
		}
		e := &operatorv1.Entity{Id: id, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{text: structpb.NewStringValue(text)}}}
		asJ, err := JSON(e, "  ")
		if err != nil {
			t.Fatal(err)
		}
		var back operatorv1.Entity
		if err := protojson.Unmarshal(asJ, &back); err != nil || !proto.Equal(e, &back) {
			t.Errorf("%v\n%s", err, asJ)
		}
		asY, err := YAML(e)
		if err != nil {
			t.Fatal(err)
		}
		var any map[string]any
		if err := yaml.Unmarshal(asY, &any); err != nil || any["id"] != id {
			t.Errorf("%v: id %q, want %q\n%s", err, any["id"], id, asY)
		}
	})
}

func BenchmarkList(b *testing.B) {
	list := &operatorv1.ListEntitiesResponse{}
	for i := range 10_000 {
		list.Entities = append(list.Entities, &operatorv1.Entity{Type: "drone-survey", Id: fmt.Sprintf("m-%05d", i), Phase: "planning", UpdatedAt: timestamppb.Now()})
	}
	for _, format := range []string{"table", "json", "yaml"} {
		b.Run(format, func(b *testing.B) {
			o := &Format{name: format}
			for b.Loop() {
				if err := o.Write(io.Discard, list, func(t *Table) {
					for _, e := range list.GetEntities() {
						t.Row(e.GetId(), State(e.GetPhase()), Age(e.GetUpdatedAt(), time.Now()))
					}
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
