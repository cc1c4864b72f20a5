// Package upgrade has the command that replaces a process by a new one, App.Upgrade. It asks the
// process itself, at its health address.
//
// Begin at [Command].
package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

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
			token, err := adminToken(cmd.Context(), tokenFile)
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
func adminToken(ctx context.Context, file string) (string, error) {
	text := []byte(os.Getenv(tokenVar))
	if file != "" {
		var err error
		if text, err = cli.ReadFile(ctx, file, nil); err != nil {
			return "", cli.Fail(cli.ExitUsage, "the admin token: %w", err)
		}
	}
	words := strings.Fields(string(text))
	if len(words) != 1 {
		return "", cli.Fail(cli.ExitUsage, "want the admin token alone in --admin-token-file or %s, have %d words",
			tokenVar, len(words))
	}
	return words[0], nil
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
		return "", cli.Fail(cli.ExitUnreachable, "the process at %s does not answer: %w", address, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", cli.Fail(cli.ExitUnreachable, "the answer of %s: %w", address, err)
	}
	said := strings.TrimSpace(string(body))
	if resp.StatusCode == http.StatusOK {
		if !strings.HasPrefix(said, "upgraded: process ") {
			return "", cli.Fail(cli.ExitNotFound, "%s is not the health address of a process: nothing was upgraded, and it answers %.100q", address, said)
		}
		return said, nil
	}
	status := map[int]int{
		http.StatusConflict:     cli.ExitConflict, // it has failed, and says why
		http.StatusUnauthorized: cli.ExitDenied,
		http.StatusNotFound:     cli.ExitNotFound, // it has no admin token
	}[resp.StatusCode]
	return "", cli.Fail(cmp.Or(status, cli.ExitUnreachable), "%s answers %s: %s", address, resp.Status, said)
}
