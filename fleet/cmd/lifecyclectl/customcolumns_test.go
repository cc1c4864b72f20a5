package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// The columns are those that were asked for, of each item of a list, of one object and of
// the object of a change.
func TestCustomColumns(t *testing.T) {
	p := &operatorv1.Process{Id: "web.1", Host: "a\x1b[2J", Pid: 7, Ready: true, Units: []*operatorv1.Unit{{Name: "u1"}, {Name: "u2"}}}
	item, err := changeOf("KIND_PUT", p)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		columns string
		m       proto.Message
		want    string
	}{
		{"ID:.id,WHERE:.host,PID:.pid,UP:{.ready}", &operatorv1.ListProcessesResponse{Processes: []*operatorv1.Process{p, {Id: "x"}}, NextPageToken: "n"},
			"ID            WHERE         PID           UP\nweb.1         a\\u001b[2J    7             true\nx                           0             false\n"},
		{"UNITS:.units[*].name,LAST:.units[-1].name,NO:.nothing.at.all", p, "UNITS         LAST          NO\nu1,u2         u2            <none>\n"},
		{"ID:.id", &operatorv1.WatchProcessesResponse{Process: p}, "ID\nweb.1\n"},
		{"ID:.id", item, "ID\nweb.1\n"},
		{"KEY:.key", &operatorv1.GetConfigResponse{}, "KEY\n"},
	} {
		o := &output{format: "custom-columns=" + one.columns}
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := o.write(&b, one.m, nil); err != nil || b.String() != one.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", one.columns, err, b.String(), one.want)
		}
	}
	o := &output{format: "custom-columns=ID:.id"}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for range 2 { // a watch has one head
		if err := o.item(&b, p); err != nil {
			t.Fatal(err)
		}
	}
	if b.String() != "ID\nweb.1\nweb.1\n" {
		t.Errorf("a watch writes %q", b.String())
	}
	for _, wrong := range []string{"", "ID", ":.id", "ID:", "ID:id", "ID:.id,", "ID:.a[x]", "ID:.a["} {
		if err := (&output{format: "custom-columns=" + wrong}).check(); err == nil || !strings.Contains(err.Error(), "-o custom-columns") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
