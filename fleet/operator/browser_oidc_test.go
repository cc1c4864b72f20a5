package operator_test

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pleme-io/lifecycle-go/fleet/internal/oidctest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// dashboardClient is a client of the provider for a server at base.
func dashboardClient(base string) map[string]any {
	return map[string]any{
		"client_id": "dashboard", "token_endpoint_auth_method": "none", "grant_types": []string{"authorization_code"}, "response_types": []string{"code"},
		"redirect_uris": []string{base + "/ui/login/callback"}, "post_logout_redirect_uris": []string{base + "/ui/login"},
	}
}

// A person signs in at a real provider with a real browser, which comes back from another
// site, and signs out of both.
func TestBrowserSignsInAtARealProvider(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	base, ready := listen(t)
	issuer := oidctest.Start(t, []map[string]any{dashboardClient(base)}, "ops")
	auth, err := operator.OIDC(operator.OIDCConfig{
		Issuer: issuer, ClientID: "dashboard", RedirectURL: base + "/ui/login/callback", LogoutURL: base + "/ui/login", NameClaim: "email", Name: "the company",
		Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleViewer, Workflows: []string{"drone-*"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ready(operator.Config{Workflows: newMemory(1), Auth: auth, Log: quiet})
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "the sign-in page", `location.pathname === "/ui/login"`)
	accessible(t, ctx, axeScript(t), "the sign-in page")
	click := func(selector string) {
		t.Helper()
		click(t, ctx, selector)
	}
	click(`a[href^="/ui/login/start"]`)
	await(t, ctx, "the provider", `location.origin === "`+issuer+`" && document.querySelector("[name=user]")`)
	if err := chromedp.Run(ctx, chromedp.SendKeys(`[name=user]`, "ada", chromedp.ByQuery)); err != nil {
		t.Fatal(err)
	}
	click("button")
	await(t, ctx, "the page that was asked for", `location.href === "`+base+`/ui/workflows/drone-survey" && document.querySelector(".who .name")?.textContent === "ada@example.com"`)
	if n := evaluate[int](t, ctx, `document.cookie.length`); n != 0 {
		t.Error("a script can read a cookie")
	}
	click(".who button")
	await(t, ctx, "the provider's sign-out", `location.origin === "`+issuer+`" && document.querySelector("[name=logout]")`)
	click("[name=logout]")
	await(t, ctx, "the sign-in page again", `location.href.startsWith("`+base+`/ui/login")`)
	visit(t, ctx, base+"/ui/workflows")
	await(t, ctx, "the sign-in page", `location.pathname === "/ui/login"`)
	if code, _, _ := request(t, http.MethodGet, base+"/ui/login/settings", ""); code != 200 {
		t.Errorf("the settings of the command line: %d", code)
	}
}
