package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func loginCommand() *cobra.Command {
	var (
		r                 remote
		device, noBrowser bool
	)
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign in at the server as a person",
		Long: `Sign in at the server as a person, with the OpenID provider that the server names.
It opens a browser on this machine, and waits until you have signed in there. With
--device it shows a code instead, which you enter in a browser on any machine.

The token is kept in the folder logins beside the configuration file, for this server
alone and readable by you alone. All commands use it for the server, unless a token file
or a client certificate is given, and renew it when the provider allows that.`,
		Args: words(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.anonymous = true
			a, err := r.open()
			if err != nil {
				return err
			}
			defer a.Close()
			path, err := loginFile(a.url)
			if err != nil {
				return err
			}
			settings, err := a.SignIn(cmd.Context())
			if connect.CodeOf(err) == connect.CodeUnimplemented {
				return &failure{status: exitFindings, err: errors.New("people do not sign in at " + a.url + " with OpenID Connect"), hints: []string{"give credentials: --token-file FILE, or --cert-file and --key-file"}}
			}
			if err != nil {
				return a.explain(cmd.Context(), err, subject{})
			}
			l := &login{path: path, Server: a.url, Issuer: settings.Issuer, ClientID: settings.ClientID}
			if err := l.signIn(cmd.Context(), cmd.ErrOrStderr(), settings.Scopes, device, !noBrowser); err != nil {
				if cmd.Context().Err() != nil {
					return context.Canceled
				}
				return &failure{status: exitDenied, err: fmt.Errorf("you are not signed in: %w", err)}
			}
			me, err := a.as(l).Access.WhoAmI(cmd.Context(), &operatorv1.WhoAmIRequest{})
			if err != nil {
				return a.explain(cmd.Context(), err, subject{})
			}
			if err := l.write(); err != nil {
				return fmt.Errorf("keep the login: %w", err)
			}
			return send(cmd.OutOrStdout(), []byte("signed in at "+a.url+" as "+printable(me.GetName())+"\n"))
		},
	}
	cmd.Flags().BoolVar(&device, "device", false, "show a code to enter in a browser on any machine")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address to open")
	r.register(cmd)
	return cmd
}

func logoutCommand() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Forget the login at the server",
		Long: `Forget the login at the server, and tell the provider that its refresh token is no
longer valid. The token itself is valid until it expires.`,
		Args: words(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.anonymous = true
			a, err := r.open()
			if err != nil {
				return err
			}
			defer a.Close()
			l, err := readLogin(a.url)
			if err != nil {
				return err
			}
			if l == nil {
				return send(cmd.OutOrStdout(), []byte("there is no login at "+a.url+"\n"))
			}
			if err := l.forget(cmd.Context()); err != nil {
				return err
			}
			return send(cmd.OutOrStdout(), []byte("signed out of "+a.url+"\n"))
		},
	}
	r.register(cmd)
	return cmd
}

// Limits of an answer of a provider.
const (
	providerTime = 30 * time.Second
	providerBody = 1 << 20 // bytes
)

// providerClient speaks with a provider.
var providerClient = &http.Client{Transport: limited{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// limited bounds answers in time and size. A Timeout of the client would keep a goroutine
// for each answer that is read to its end and not closed.
type limited struct{}

func (limited) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), providerTime)
	resp, err := http.DefaultTransport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &limitedBody{http.MaxBytesReader(nil, resp.Body, providerBody), cancel}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	over context.CancelFunc
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.over()
	}
	return n, err
}

func (b *limitedBody) Close() error {
	b.over()
	return b.ReadCloser.Close()
}

// safeURL reports whether an address is of https, or of this machine.
func safeURL(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname()))
}

// signIn gets tokens from the provider.
func (l *login) signIn(ctx context.Context, say io.Writer, scopes []string, device, browser bool) error {
	if !safeURL(l.Issuer) {
		return fmt.Errorf("the server names the provider %q: want https", l.Issuer)
	}
	ctx = oidc.ClientContext(ctx, providerClient)
	p, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return err
	}
	var doc struct {
		Scopes []string `json:"scopes_supported"`
		Revoke string   `json:"revocation_endpoint"`
	}
	if err := p.Claims(&doc); err != nil {
		return err
	}
	for _, address := range []string{p.Endpoint().AuthURL, p.Endpoint().TokenURL} {
		if !safeURL(address) {
			return fmt.Errorf("the provider names the address %q: want https", address)
		}
	}
	if !safeURL(doc.Revoke) {
		doc.Revoke = "" // a refresh token does not go there
	}
	l.TokenURL, l.RevokeURL = p.Endpoint().TokenURL, doc.Revoke
	c := &oauth2.Config{ClientID: l.ClientID, Endpoint: p.Endpoint(), Scopes: scopes}
	c.Endpoint.AuthStyle = oauth2.AuthStyleInParams // a public client has no secret
	var more []oauth2.AuthCodeOption
	if slices.Contains(doc.Scopes, oidc.ScopeOfflineAccess) {
		c.Scopes = append(c.Scopes, oidc.ScopeOfflineAccess)
		more = append(more, oauth2.SetAuthURLParam("prompt", "consent")) // OpenID Connect Core, section 11
	}
	var tokens *oauth2.Token
	nonce := ""
	if device {
		tokens, err = byDevice(ctx, say, c)
	} else {
		nonce = rand.Text()
		tokens, err = byBrowser(ctx, say, c, l.Issuer, browser, append(more, oidc.Nonce(nonce))...)
	}
	if err != nil {
		return err
	}
	raw, _ := tokens.Extra("id_token").(string)
	id, err := p.Verifier(&oidc.Config{ClientID: l.ClientID}).Verify(ctx, raw)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 {
		return errors.New("the answer of the provider is of another login")
	}
	l.IDToken, l.Expiry, l.RefreshToken = raw, id.Expiry, tokens.RefreshToken
	return nil
}

// byDevice signs in with the device authorization grant (RFC 8628).
func byDevice(ctx context.Context, say io.Writer, c *oauth2.Config) (*oauth2.Token, error) {
	if c.Endpoint.DeviceAuthURL == "" {
		return nil, errors.New("the provider has no sign-in by code: leave --device out")
	}
	code, err := c.DeviceAuth(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(say, "Open %s and enter the code %s\n", printable(code.VerificationURI), printable(code.UserCode))
	return c.DeviceAccessToken(ctx, code)
}

// byBrowser signs in with a browser on this machine, which the provider sends back to a
// port of it (RFC 8252, section 7.3), with PKCE.
func byBrowser(ctx context.Context, say io.Writer, c *oauth2.Config, issuer string, browser bool, more ...oauth2.AuthCodeOption) (*oauth2.Token, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.RedirectURL = "http://" + ln.Addr().String() + "/callback"
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	type answer struct {
		code string
		err  error
	}
	answers := make(chan answer, 1)
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		if r.URL.Path != "/callback" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 || q.Has("iss") && q.Get("iss") != issuer {
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
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(ln) }()
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(within) // the page is written
		_ = srv.Close()
		<-served
	}()
	address := c.AuthCodeURL(state, append(more, oauth2.S256ChallengeOption(verifier))...)
	fmt.Fprintf(say, "Open this page to sign in:\n%s\n", printable(address))
	if browser {
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
