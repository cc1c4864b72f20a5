package operator_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

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
	ready(operator.Config{Workflows: newMemory(1), Auth: auth, Logger: quiet})
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
	if err := chromedp.Do(ctx, chromedp.SendKeys(`[name=user]`, "ada")); err != nil {
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

// A real browser takes the session's cookie of a page over TLS, of a proxy that does not say
// that it is one, and gives it up at the sign-out.
func TestBrowserSignsInOverTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	_, auth := tokenFile(t)
	inner, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	target, err := url.Parse(inner)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host }})
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0) // the browser tries its other connections before it is told to trust this one
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	ctx := browser(t)
	if _, err := chromedp.Call(ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true}); err != nil {
		t.Fatal(err)
	}
	cookies := func() (names []string) {
		t.Helper()
		list, err := chromedp.Call(ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{proxy.URL + "/ui/"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list.Cookies {
			names = append(names, c.Name)
		}
		return names
	}
	visit(t, ctx, proxy.URL+"/ui/workflows")
	await(t, ctx, "the form", `location.pathname === "/ui/login" && document.activeElement.name === "token"`)
	press(t, ctx, vicToken+kb.Enter)
	await(t, ctx, "the page that was asked for", `location.pathname === "/ui/workflows" && document.querySelector(".who .name")?.textContent === "vic"`)
	if got := cookies(); !slices.Equal(got, []string{"__Host-lifecycle-session"}) {
		t.Errorf("the browser has the cookies %v", got)
	}
	click(t, ctx, ".who button")
	await(t, ctx, "the sign-in page", `location.pathname === "/ui/login"`)
	if got := cookies(); len(got) != 0 {
		t.Errorf("after signing out the browser has the cookies %v", got)
	}
}
