package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
)

// shop is the configuration of a service.
type shop struct {
	Addr   string
	DB     struct{ Host, Name string }
	Prices map[string]struct{ Cents int }
	Shelf  []struct{ Label string }

	Lifecycle lifecycle.Config
}

// TestChartKnowsTheServicesKeys: with the schema of a service the chart refuses a key that
// the service does not have, says where it is, and which one was meant.
func TestChartKnowsTheServicesKeys(t *testing.T) {
	text, err := config.Schema[shop](nil)
	if err != nil {
		t.Fatal(err)
	}
	schema := filepath.Join(t.TempDir(), "schema.json")
	render := func(text, values string) error {
		t.Helper()
		if err := os.WriteFile(schema, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte("config: "+values+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := output(t, tool(t, "helm"), append(chartArgs(nil), "--set-file", "configSchema="+schema, "--values", file)...)
		return err
	}
	for values, want := range map[string]string{
		`{db: {host: db, name: shop}, prices: {tea: {cents: 1}}, shelf: [{label: a}], lifecycle: {linger: 3s}, x-anchor: 1}`: "",
		`{}`:                                "",
		`{db: {hots: db}}`:                  "config.db.hots is not a key of the service: did you mean host?",
		`{prices: {tea: {cent: 1}}}`:        "config.prices.tea.cent is not a key of the service: did you mean cents?",
		`{shelf: [{label: a}, {lable: a}]}`: "config.shelf[1].lable is not a key of the service: did you mean label?",
		`{database: {}}`:                    "config.database is not a key of the service",
		`{lifecycle: {lingr: 3s}}`:          "did you mean linger?",
	} {
		if err := render(string(text), values); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
	for _, bad := range []string{"no JSON", `{"type": "object"}`, `[]`} {
		if err := render(bad, "{}"); err == nil || !strings.Contains(err.Error(), "config.Schema") {
			t.Errorf("the schema %s: %v", bad, err)
		}
	}
}
