package access

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func login() *cobra.Command {
	var device, noBrowser bool
	cmd := cli.LoginCommand(&cobra.Command{
		Use:   "login",
		Short: "Sign in at the server as a person",
		Long: `Sign in at the server as a person, with the OpenID provider that the server names.
It opens a browser on this machine, and waits until you have signed in there. With
--device it shows a code instead, which you enter in a browser on any machine.

The token is kept in the folder logins beside the configuration file, for this server
alone and readable by you alone. All commands use it for the server, unless a token file
or a client certificate is given, and renew it when the provider allows that.`,
		Args: cli.Words(),
	}, func(c *cli.Call) error {
		settings, err := c.SignIn(c.Context())
		if connect.CodeOf(err) == connect.CodeUnimplemented {
			return cli.Fail(cli.ExitFindings, "people do not sign in at %s with OpenID Connect", c.URL).
				Hint("give credentials: --token-file FILE, or --cert-file and --key-file")
		}
		if err != nil {
			return err
		}
		l := &cli.Login{Server: c.URL, Issuer: settings.Issuer, ClientID: settings.ClientID}
		p := provider{login: l, say: c.ErrOrStderr(), scopes: settings.Scopes}
		if err := p.signIn(c.Context(), device, !noBrowser); err != nil {
			if c.Context().Err() != nil {
				return context.Canceled
			}
			return cli.Fail(cli.ExitDenied, "you are not signed in: %w", err)
		}
		s, err := c.As(l)
		if err != nil {
			return err
		}
		me, err := s.Access.WhoAmI(c.Context(), &operatorv1.WhoAmIRequest{})
		if err != nil {
			return err
		}
		if err := l.Write(); err != nil {
			return fmt.Errorf("keep the login: %w", err)
		}
		return c.Send([]byte("signed in at " + c.URL + " as " + output.Printable(me.GetName()) + "\n"))
	})
	cmd.Flags().BoolVar(&device, "device", false, "show a code to enter in a browser on any machine")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address to open")
	return cmd
}

func logout() *cobra.Command {
	return cli.LoginCommand(&cobra.Command{
		Use:   "logout",
		Short: "Forget the login at the server",
		Long: `Forget the login at the server, and tell the provider that its refresh token is no
longer valid. The token itself is valid until it expires.`,
		Args: cli.Words(),
	}, func(c *cli.Call) error {
		l, err := cli.ReadLogin(c.URL)
		if err != nil {
			return err
		}
		if l == nil {
			return c.Send([]byte("there is no login at " + c.URL + "\n"))
		}
		if err := l.Forget(c.Context()); err != nil {
			return err
		}
		return c.Send([]byte("signed out of " + c.URL + "\n"))
	})
}
