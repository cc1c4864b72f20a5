// Package upgrade has the command that replaces a process by a new one, App.Upgrade. It asks the
// process itself, at its health address.
//
// Begin at [Command].
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

const (
	defaultAddress = "http://127.0.0.1:8081"
	tokenVar       = "LIFECYCLECTL_ADMIN_TOKEN" //nolint:gosec // the name of a variable

	// maxAnswer bounds the line that the process answers with, in bytes.
	maxAnswer = 4096
)

// Command returns the command upgrade.
func Command() *cobra.Command {
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "upgrade [ADDRESS]",
		Short: "Replace a process by a new one, without a lost request",
		Long: `Replace a process by a new one, without a lost request: it starts its program again, hands
it its sockets, and ends when the new one serves. The command asks the process itself, at its
health address (` + defaultAddress + ` by default), with its admin token, and needs no server.
It ends when the new process serves. When that fails, the old one serves on, the exit
status is 4, and the error says why. The upgrade goes on when the command is interrupted.`,
		Example: `  lifecyclectl upgrade --admin-token-file /etc/web/admin-token
  ` + tokenVar + `=… lifecyclectl upgrade http://127.0.0.1:9081`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address := defaultAddress
			if len(args) > 0 {
				address = args[0]
			}
			token, err := adminToken(tokenFile)
			if err != nil {
				return err
			}
			said, err := ask(cmd.Context(), address, token)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), output.Printable(said))
			return nil
		},
	}
	cmd.Flags().StringVar(&tokenFile, "admin-token-file", "", "`file` with the admin token of the process; default: the variable "+tokenVar)
	return cmd
}

// adminToken returns the token of the file, or else of the variable.
func adminToken(file string) (string, error) {
	token, from := os.Getenv(tokenVar), tokenVar
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", cli.Fail(cli.ExitUsage, "the admin token: %w", err)
		}
		token, from = string(text), file
	}
	token = strings.TrimSpace(token)
	switch {
	case token == "" && file == "":
		return "", cli.Fail(cli.ExitUsage, "there is no admin token: want --admin-token-file or %s", tokenVar)
	case token == "":
		return "", cli.Fail(cli.ExitUsage, "the admin token: %s is empty", file)
	case strings.ContainsFunc(token, unicode.IsControl):
		return "", cli.Fail(cli.ExitUsage, "the admin token of %s has a line break or another control character in it: want the token alone", from)
	}
	return token, nil
}

// ask asks the process at the address to upgrade, and returns what it answers.
func ask(ctx context.Context, address, token string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return "", cli.Fail(cli.ExitUsage, "%q is not the address of a process: want %s", address, defaultAddress)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath("admin", "upgrade").String(), http.NoBody)
	if err != nil {
		return "", cli.Fail(cli.ExitUsage, "%w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // without a proxy: the process is near
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		var from *url.Error
		if errors.As(err, &from) {
			err = from.Err
		}
		return "", cli.Fail(cli.ExitUnreachable, "the process at %s does not answer: %w", address, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	said := strings.TrimSpace(string(body))
	switch {
	case resp.StatusCode == http.StatusOK && err == nil:
		var process int
		if n, _ := fmt.Sscanf(said, "upgraded: process %d serves", &process); n != 1 {
			return "", cli.Fail(cli.ExitNotFound, "%s is not the health address of a process: nothing was upgraded, and it answers %.100q", address, said)
		}
		return said, nil
	case resp.StatusCode == http.StatusConflict:
		return "", cli.Fail(cli.ExitConflict, "%s", said)
	case resp.StatusCode == http.StatusUnauthorized:
		return "", cli.Fail(cli.ExitDenied, "%s has another admin token", address)
	case resp.StatusCode == http.StatusNotFound:
		return "", cli.Fail(cli.ExitNotFound, "%s has no /admin: want the health address of a process with an admin_token", address)
	case err != nil:
		return "", cli.Fail(cli.ExitUnreachable, "the answer of %s: %w", address, err)
	}
	return "", cli.Fail(cli.ExitUnreachable, "%s answers %s: %s", address, resp.Status, said)
}
