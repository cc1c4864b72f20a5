package workers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

func bus() *cobra.Command {
	var file, account string
	cmd := &cobra.Command{
		Use:   "bus",
		Short: "Write the NATS accounts of the tenants that the hosts' configuration grants topics to",
		Long: `Write the NATS accounts of the tenants, from the grants of the hosts' configuration. It
needs no server. Each tenant gets an account of its own: a client in it publishes to the
tenant's topics, gets what is published to the tenant's outputs, and reaches nothing else
of the account of the hosts. Include the file in the accounts of nats-server's configuration,
as deploy/nats/hosted.conf does. A tenant without topics and outputs gets no account. A
topic of "*" belongs to no tenant, and is left out.`,
		Example: `  lifecyclectl workers bus --config service.yaml > tenants.conf`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := cli.ReadFile(cmd.Context(), file, cmd.InOrStdin())
			if err != nil {
				return fmt.Errorf("--config: %w", err)
			}
			tenants, err := readGrants(text)
			if err != nil {
				return fmt.Errorf("--config: %s: %w", file, err)
			}
			conf, err := accountsOf(account, tenants)
			if err != nil {
				return fmt.Errorf("--config: %s: %w", file, err)
			}
			return output.Send(cmd.OutOrStdout(), conf)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration of the hosts in YAML, from this `file`; - is standard input")
	_ = cmd.MarkFlagRequired("config") // the flag exists
	cmd.Flags().StringVar(&account, "account", "HOSTS", "the `name` of the account that the hosts are in")
	return cmd
}

// busGrant is the part of a tenant's grant that its account follows from.
type busGrant struct {
	Topics  []string `yaml:"topics"`
	Outputs []string `yaml:"outputs"`
}

// readGrants returns the grants in a configuration, at any depth.
func readGrants(text []byte) (map[string]busGrant, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var found []*yaml.Node
	var look func(*yaml.Node)
	look = func(n *yaml.Node) {
		for i, child := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == "grants" && child.Kind == yaml.MappingNode {
				found = append(found, child)
				continue
			}
			look(child)
		}
	}
	look(&doc)
	if len(found) != 1 {
		return nil, fmt.Errorf("it has %d mappings with the name grants, want one", len(found))
	}
	tenants := make(map[string]busGrant)
	return tenants, found[0].Decode(&tenants)
}

var (
	tenantName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
	// busSubject has neither quotes nor backslashes, which mean something in the configuration, and
	// no $ in its first token, as the server's own subjects have.
	busSubject = regexp.MustCompile(`^[^\s"'\\$.{}\[\]]+(\.[^\s"'\\.{}\[\]]+)*$`)
)

// accountsOf returns what belongs into the accounts of nats-server's configuration. The hosts'
// account exports the topics as services, so that a client of a tenant gets the answer of
// JetStream that its message is stored, and the outputs as streams.
func accountsOf(hosts string, tenants map[string]busGrant) ([]byte, error) {
	exports := make(map[string][]string) // the accounts, by kind and subject
	var accounts bytes.Buffer
	taken := make(map[string]string)
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		g := tenants[tenant]
		if tenant == "*" || len(g.Topics)+len(g.Outputs) == 0 {
			continue
		}
		name := "TENANT_" + strings.ToUpper(strings.ReplaceAll(tenant, "-", "_"))
		switch other := taken[name]; {
		case !tenantName.MatchString(tenant):
			return nil, fmt.Errorf("the tenant %.100q: want 1 to 100 letters, digits, - and _", tenant)
		case other != "":
			return nil, fmt.Errorf("the tenants %s and %s would both have the account %s", other, tenant, name)
		}
		taken[name] = tenant
		fmt.Fprintf(&accounts, "\n# The tenant %s.\n%s {\n  users: [{nkey: $%s_NKEY}]\n  imports: [\n", tenant, name, name)
		for _, kind := range []struct {
			is       string
			subjects []string
		}{{"service", g.Topics}, {"stream", g.Outputs}} {
			for _, subject := range slices.Compact(slices.Sorted(slices.Values(kind.subjects))) {
				first, _, _ := strings.Cut(subject, ".")
				if !busSubject.MatchString(subject) || first == "*" || first == ">" {
					return nil, fmt.Errorf("grants.%s: the subject %.200q: want one that begins with a name, without quotes and brackets", tenant, subject)
				}
				export := fmt.Sprintf("%s: %q", kind.is, subject)
				exports[export] = append(exports[export], name)
				fmt.Fprintf(&accounts, "    {%s: {account: %s, subject: %q}}\n", kind.is, hosts, subject)
			}
		}
		accounts.WriteString("  ]\n}\n")
	}
	if len(taken) == 0 {
		return nil, errors.New("no tenant has topics or outputs")
	}
	var conf bytes.Buffer
	conf.WriteString("# Made by \"lifecyclectl workers bus\" from the grants of the hosts. Do not edit.\n\n")
	fmt.Fprintf(&conf, "# What the account %s exports: each subject to its tenants alone.\n%s_EXPORTS: [\n", hosts, hosts)
	for _, export := range slices.Sorted(maps.Keys(exports)) {
		fmt.Fprintf(&conf, "  {%s, accounts: [%s]}\n", export, strings.Join(exports[export], ", "))
	}
	conf.WriteString("]\n")
	conf.Write(accounts.Bytes())
	return conf.Bytes(), nil
}
