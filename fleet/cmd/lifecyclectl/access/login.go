package access

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

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
	}, func(c *cli.Call) error {
		l, err := cli.ReadLogin(c.Context(), c.URL)
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

// provider is the OpenID provider at which a person signs in.
type provider struct {
	login  *cli.Login
	say    io.Writer
	scopes []string
}

// signIn gets tokens from the provider.
func (p *provider) signIn(ctx context.Context, useDevice, openBrowser bool) error {
	l := p.login
	if !cli.IsSafe(l.Issuer) {
		return fmt.Errorf("the server names the provider %q: want https", l.Issuer)
	}
	ctx = oidc.ClientContext(ctx, cli.ProviderClient)
	found, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return err
	}
	var doc struct {
		Scopes []string `json:"scopes_supported"`
		Revoke string   `json:"revocation_endpoint"`
	}
	if err := found.Claims(&doc); err != nil {
		return err
	}
	for _, address := range []string{found.Endpoint().AuthURL, found.Endpoint().TokenURL} {
		if !cli.IsSafe(address) {
			return fmt.Errorf("the provider names the address %q: want https", address)
		}
	}
	if !cli.IsSafe(doc.Revoke) {
		doc.Revoke = "" // a refresh token does not go there
	}
	l.TokenURL, l.RevokeURL = found.Endpoint().TokenURL, doc.Revoke
	c := &oauth2.Config{ClientID: l.ClientID, Endpoint: found.Endpoint(), Scopes: p.scopes}
	c.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	var options []oauth2.AuthCodeOption
	if slices.Contains(doc.Scopes, oidc.ScopeOfflineAccess) {
		c.Scopes = append(c.Scopes, oidc.ScopeOfflineAccess)
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent")) // OpenID Connect Core, section 11
	}
	var tokens *oauth2.Token
	nonce := ""
	if useDevice {
		tokens, err = p.byDevice(ctx, c)
	} else {
		nonce = rand.Text()
		tokens, err = p.byBrowser(ctx, c, openBrowser, append(options, oidc.Nonce(nonce)))
	}
	if err != nil {
		return err
	}
	raw, _ := tokens.Extra("id_token").(string)
	id, err := found.Verifier(&oidc.Config{ClientID: l.ClientID}).Verify(ctx, raw)
	if err != nil {
		return err
	}
	if !isEqual(id.Nonce, nonce) {
		return errors.New("the answer of the provider is of another login")
	}
	l.IDToken, l.Expiry, l.RefreshToken = raw, id.Expiry, tokens.RefreshToken
	return nil
}

func isEqual(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// byDevice signs in with the device authorization grant (RFC 8628).
func (p *provider) byDevice(ctx context.Context, c *oauth2.Config) (*oauth2.Token, error) {
	if c.Endpoint.DeviceAuthURL == "" {
		return nil, errors.New("the provider has no sign-in by code: leave --device out")
	}
	code, err := c.DeviceAuth(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(p.say, "Open %s and enter the code %s\n", output.Printable(code.VerificationURI), output.Printable(code.UserCode))
	return c.DeviceAccessToken(ctx, code)
}

// byBrowser signs in with a browser on this machine, which the provider sends back to a
// port of it (RFC 8252, section 7.3), with PKCE.
func (p *provider) byBrowser(
	ctx context.Context, c *oauth2.Config, openBrowser bool, options []oauth2.AuthCodeOption,
) (*oauth2.Token, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.RedirectURL = "http://" + ln.Addr().String() + "/callback"
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	answers := make(chan answer, 1)
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: p.callback(state, answers)}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(ln) }()
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(within) // the page is written
		_ = srv.Close()
		<-served
	}()
	address := c.AuthCodeURL(state, append(options, oauth2.S256ChallengeOption(verifier))...)
	fmt.Fprintf(p.say, "Open this page to sign in:\n%s\n", output.Printable(address))
	if openBrowser {
		openPage(ctx, address)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case got := <-answers:
		if got.err != nil {
			return nil, got.err
		}
		return c.Exchange(ctx, got.code, oauth2.VerifierOption(verifier))
	}
}

// answer is what the provider sends back.
type answer struct {
	code string
	err  error
}

// callback serves the page to which the provider sends the browser back.
func (p *provider) callback(state string, answers chan<- answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		isOtherIssuer := q.Has("iss") && q.Get("iss") != p.login.Issuer
		if r.URL.Path != "/callback" || !isEqual(q.Get("state"), state) || isOtherIssuer {
			http.Error(w, "this is not the answer to a login that waits here", http.StatusBadRequest)
			return
		}
		got := answer{code: q.Get("code")}
		if q.Has("error") {
			got.err = fmt.Errorf("the provider says %q", q.Get("error"))
			fmt.Fprintln(w, "The provider has refused. You may close this page.")
		} else {
			fmt.Fprintln(w, "You may close this page.")
		}
		select {
		case answers <- got:
		default: // the first answer counts
		}
	})
}

// openPage opens a browser, when there is one.
func openPage(ctx context.Context, address string) {
	name, args := "xdg-open", []string{address}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", address}
	}
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_ = exec.CommandContext(within, name, args...).Run() // the address is printed too
}
