// Package access has the commands about people: who the user is at a server, sign-in and
// sign-out, and the audit of what people did.
//
// Each command asks an operator server through package cli; begin at [Commands]. login.go and
// openid.go sign a person in.
package access

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command { return []*cobra.Command{login(), logout(), whoami(), audit()} }

func whoami() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "whoami",
		Short: "Show your name and role on the server",
		Long: `Show your name and role on the server: a viewer reads, an inspector
also reads the logs, stacks and configuration of processes, an operator also acts.`,
		Args: cli.Words(),
	}, cli.OfNothing, func(c *cli.Call) error {
		me, err := c.Access.WhoAmI(c.Context(), &operatorv1.WhoAmIRequest{})
		if err != nil {
			return err
		}
		return c.Write(me, func(t *output.Table) {
			t.Row(output.Faint("name"), me.GetName())
			t.Row(output.Faint("role"), me.GetRole())
			for _, g := range me.GetGrants() {
				t.Row(output.Faint("role"), g.GetRole()+whereOf(g))
			}
			t.Row(output.Faint("by"), me.GetMethod())
			t.Row(output.Faint("server"), c.URL)
		})
	})
}

// whereOf says where a role in a part of the fleet is valid.
func whereOf(g *operatorv1.Grant) string {
	text := ""
	for _, list := range []struct {
		kind  string
		names []string
	}{{"services", g.GetServices()}, {"workflows", g.GetWorkflows()}, {"workers", g.GetWorkers()}, {"tenants", g.GetTenants()}} {
		if len(list.names) > 0 {
			text += " " + list.kind + "=" + strings.Join(list.names, ",")
		}
	}
	return text
}
