package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/workflows"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// The filters of a watch mean what those of a list do: on the same server, the same ids.
func TestFiltersOfAWatchAreThoseOfAList(t *testing.T) {
	s := newSite(t)
	for i := range 12 {
		e := &survey{ID: fmt.Sprintf("m-%02d", i), State: []string{"planning", "flying", "completed"}[i%3], Org: []string{"acme", "other"}[i%2], Priority: uint32(i % 4)}
		if err := s.mgr.Create(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	cmd := new(cobra.Command)
	cmd.Flags().AddFlagSet(cli.ConnectionFlags())
	if err := cmd.Flags().Set("server", url); err != nil {
		t.Fatal(err)
	}
	a, err := cli.Open(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ids := func(req *operatorv1.ListEntitiesRequest) (list []string, all []*operatorv1.Entity) {
		t.Helper()
		req.Type, req.PageSize = "drone-survey", 1000
		page, err := a.Workflows.ListEntities(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.GetEntities() {
			list = append(list, e.GetId())
		}
		return list, page.GetEntities()
	}
	_, all := ids(&operatorv1.ListEntitiesRequest{})
	if len(all) != 12 {
		t.Fatalf("there are %d entities", len(all))
	}
	for _, req := range []*operatorv1.ListEntitiesRequest{
		{Phase: "flying"}, {Active: true}, {Contains: "m-0"}, {Match: []string{"org=acme"}}, {Match: []string{"priority=3"}}, {Match: []string{"priority=3", "org=other"}},
		{Phase: "planning", Match: []string{"org=acme"}, Contains: "1"}, {UpdatedAfter: timestamppb.New(time.Now().Add(-time.Hour))}, {UpdatedAfter: timestamppb.New(time.Now().Add(time.Hour))},
	} {
		var got []string
		for _, e := range all {
			if workflows.Matches(req, e) {
				got = append(got, e.GetId())
			}
		}
		if want, _ := ids(req); !slices.Equal(got, want) {
			t.Errorf("%v: a watch shows %s, a list %s", req, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}
