package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestReasonsAreThoseOfTheServer(t *testing.T) {
	for ours, theirs := range map[string]string{
		reasonUnknownType: operator.ReasonUnknownType, reasonNotFound: operator.ReasonNotFound, reasonStale: operator.ReasonStale,
		reasonContention: operator.ReasonContention, reasonExpired: operator.ReasonExpired, reasonForbidden: operator.ReasonForbidden,
		reasonTimeout: operator.ReasonTimeout, reasonInvalid: operator.ReasonInvalidTransition, reasonNotWritable: operator.ReasonNotWritable,
	} {
		if ours != theirs {
			t.Errorf("%s is %s on the server", ours, theirs)
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	want := map[connect.Code]int{
		connect.CodeInvalidArgument: exitUsage, connect.CodeOutOfRange: exitUsage, connect.CodeNotFound: exitNotFound,
		connect.CodeAborted: exitConflict, connect.CodeAlreadyExists: exitConflict,
		connect.CodeUnauthenticated: exitDenied, connect.CodePermissionDenied: exitDenied,
		connect.CodeUnavailable: exitUnreachable, connect.CodeDeadlineExceeded: exitUnreachable, connect.CodeResourceExhausted: exitUnreachable,
	}
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		expect, ok := want[code]
		if !ok {
			expect = exitFindings
		}
		got := statusOf(code)
		if got != expect || !slices.ContainsFunc(exitStatuses, func(s struct {
			status int
			means  string
		}) bool {
			return s.status == got
		}) {
			t.Errorf("%v gives %d, want %d", code, got, expect)
		}
	}
}

var evil = "a\x1b[2Jb\u009bc\u202ed\r\ne: [x] 'y' \"z\" # - &"

func TestForeignTextDoesNotSteerTheTerminal(t *testing.T) {
	e := &operatorv1.Entity{Id: evil, Phase: evil, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{evil: structpb.NewStringValue(evil)}}}
	for _, format := range []string{"table", "json", "yaml"} {
		var b bytes.Buffer
		o := &output{format: format}
		if err := o.write(&b, e, func(t *table) { entityTable(t, e) }); err != nil {
			t.Fatal(err)
		}
		if err := o.item(&b, e); format != "table" && err != nil {
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
	text, err := asJSON(e, "  ")
	if err != nil {
		t.Fatal(err)
	}
	var back operatorv1.Entity
	if err := protojson.Unmarshal(text, &back); err != nil || !proto.Equal(e, &back) {
		t.Errorf("JSON is not what was sent: %v\n%s", err, text)
	}
	asY, err := asYAML(e)
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

func TestFieldsOfAPatch(t *testing.T) {
	for text, want := range map[string]string{
		"3": "3", "-1.5e3": "-1500", "true": "true", "null": "null", `"007"`: `"007"`, "007": `"007"`, "soon": `"soon"`, "a b": `"a b"`, "": `""`,
		`{"a": [1]}`: `{"a":[1]}`, "9007199254740991": "9007199254740991", "9007199254740992": `"9007199254740992"`, "-99999999999999999999": `"-99999999999999999999"`, "1 2": `"1 2"`,
	} {
		v, err := fieldValue(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := valueText(v); got != want {
			t.Errorf("%q is sent as %s, want %s", text, got, want)
		}
	}
	for args, want := range map[string]string{
		"":        "no field is given: want FIELD=VALUE, or --file",
		"a":       `"a" is not a change: want FIELD=VALUE`,
		"=1":      `"=1" is not a change`,
		"a=1 a=2": "the field a is given twice",
	} {
		if _, err := patchFields(strings.Fields(args), "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
	for text, want := range map[string]string{"[1]": "is not a JSON object", "{": "is not a JSON object", `{"a":1}`: ""} {
		f, err := patchFields([]string{"b=2"}, "-", strings.NewReader(text))
		if want == "" && (err != nil || len(f.GetFields()) != 2) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", text, f, err)
		}
	}
	if _, err := readAll("-", io.LimitReader(zeros{}, maxFile+2)); err == nil || !strings.Contains(err.Error(), "larger than 64 MiB") {
		t.Errorf("too much: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAges(t *testing.T) {
	now := time.Unix(1e9, 0)
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 90 * time.Minute: "90m", 47 * time.Hour: "47h", 72 * time.Hour: "3d"} {
		if got := age(timestamppb.New(now.Add(-d)), now); got != want {
			t.Errorf("%v ago is %s, want %s", d, got, want)
		}
	}
	if age(nil, now) != "" || moment(nil) != "" || moment(&timestamppb.Timestamp{}) != "" {
		t.Error("a missing time is shown as a time")
	}
}

func TestInvalidServers(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:8090": "http://localhost:8090", "[::1]:8090": "http://[::1]:8090", "ops.example.com": "https://ops.example.com", "https://ops.example.com/fleet/": "https://ops.example.com/fleet/",
	} {
		if u, err := parseServer(text); err != nil || u.String() != want {
			t.Errorf("%s is %v, %v, want %s", text, u, err, want)
		}
	}
	for text, want := range map[string]string{
		"ftp://x": "neither http nor https", "http://": "it has no host", "http://ada:secret@x": "a user's name", "http://x?y=1": "more than an address", "http://[::1": "cannot be read",
	} {
		if _, err := parseServer(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func FuzzFieldValue(f *testing.F) {
	for _, s := range []string{"1", "soon", `"a"`, `{"a":[null,1e9]}`, "1e999", `{"a":1,"a":2}`, "\xff", `"\ud800"`, "[[[["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := fieldValue(text)
		if err != nil {
			return
		}
		if again, err := fieldValue(text); err != nil || !proto.Equal(v, again) {
			t.Errorf("%q is %v, and then %v, %v", text, v, again, err)
		}
	})
}

func FuzzOutput(f *testing.F) {
	f.Add("m-1", "planning")
	f.Add(evil, "\u2028\ufeff\u0085")
	f.Add("- a\n  b:\n", "!!int 7")
	f.Add("0", "\uffff")
	f.Add(evil, "\u2028"+strings.Repeat("T", 2000)+"\ufeff") // longer than YAML's parser accepts as a key on one line
	f.Fuzz(func(t *testing.T, id, text string) {
		if !utf8.ValidString(id) || !utf8.ValidString(text) {
			return // no server sends it
		}
		e := &operatorv1.Entity{Id: id, Fields: &structpb.Struct{Fields: map[string]*structpb.Value{text: structpb.NewStringValue(text)}}}
		asJ, err := asJSON(e, "  ")
		if err != nil {
			t.Fatal(err)
		}
		var back operatorv1.Entity
		if err := protojson.Unmarshal(asJ, &back); err != nil || !proto.Equal(e, &back) {
			t.Errorf("%v\n%s", err, asJ)
		}
		asY, err := asYAML(e)
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
			o := &output{format: format}
			for b.Loop() {
				if err := o.write(io.Discard, list, func(t *table) {
					for _, e := range list.GetEntities() {
						t.row(e.GetId(), state(e.GetPhase()), age(e.GetUpdatedAt(), time.Now()))
					}
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBoard(b *testing.B) {
	board := newBoard("http://127.0.0.1:8090")
	for i := range 1000 {
		id := fmt.Sprintf("web-%04d", i)
		board.processes[id] = &operatorv1.Process{Id: id, Service: "web", Phase: "running", Ready: true}
	}
	f, _ := board.flow(&operatorv1.Definition{Type: "drone-survey", Phases: []*operatorv1.Phase{{Name: "planning"}}})
	for i := range 100_000 {
		f.put(fmt.Sprint(i), "planning")
	}
	for b.Loop() {
		board.lines(time.Now(), true)
	}
}
