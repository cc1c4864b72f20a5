package operator_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// The keys that the list of keys names do what it says, and a button copies a command.
func TestKeysInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser: make test-long runs it")
	}
	base, _, _ := stage(t)
	ctx := browser(t)
	press := func(what string, keys ...string) {
		t.Helper()
		for _, k := range keys {
			if err := chromedp.Do(ctx, chromedp.KeyEvent(k)); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	press("the list", "?")
	await(t, ctx, "the list of keys", `document.getElementById("keys").open`)
	press("close", kb.Escape)
	await(t, ctx, "the list is closed", `!document.getElementById("keys").open`)
	press("rows", "j", "j")
	await(t, ctx, "the second row", `document.activeElement === document.querySelectorAll("#content table.cards tbody th a")[1]`)
	press("search", "/")
	await(t, ctx, "the search", `document.activeElement.name === "contains"`)
	press("text", "d")
	await(t, ctx, "keys in a field are text", `document.activeElement.value.endsWith("d") && !document.documentElement.classList.contains("dense")`)
	visit(t, ctx, base+"/ui/")
	press("dense", "d")
	await(t, ctx, "dense rows", `document.documentElement.classList.contains("dense")`)
	press("go", "g", "w")
	await(t, ctx, "the workflows", `location.pathname === "/ui/workflows" && document.documentElement.classList.contains("dense")`)
	visit(t, ctx, base+"/ui/workflows/drone-survey/acme.drones.north.survey.mission.002")
	// Not by the pointer: the sign that the page is live moves the button. And again until the answer
	// is seen: it stands for a second and a half.
	await(t, ctx, "the answer of the button", `((button) => /Copied|Not allowed/.test(button.textContent) || (button.click(), false))(
		document.querySelector('.copy[data-copy^="lifecyclectl get"]'))`)
	if n := evaluate[int](t, ctx, `document.querySelectorAll(".gantt rect").length`); n < 3 {
		t.Errorf("the life of the entity has %d bars", n)
	}
}

// A reader chooses the columns of a list; the choice stays, and rows that change in place do
// not bring a column back.
func TestColumnsInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser: make test-long runs it")
	}
	base, mgr, _ := stage(t)
	ctx := browser(t)
	const gone = `[...document.querySelectorAll("#content table[data-list=entities] tr > :nth-child(4)")].every((cell) => getComputedStyle(cell).display === "none")`
	const box = `[...document.querySelectorAll("#columns label")].find((l) => l.textContent.trim() === "Revision").firstChild`
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "all columns", `!(`+gone+`) && !document.getElementById("choosecolumns").hidden`)
	// Not by the pointer: the sign that the page is live moves the button.
	evaluate[bool](t, ctx, `(document.getElementById("choosecolumns").click(), true)`)
	await(t, ctx, "the choice, without the first column", `document.getElementById("columns").open && `+box+`.checked && document.querySelectorAll("#columns label").length === 3`)
	evaluate[bool](t, ctx, `(`+box+`.click(), true)`)
	await(t, ctx, "the column is gone", gone)
	evaluate[bool](t, ctx, `(document.getElementById("columns").close(), true)`)
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "the column is still gone", gone)
	const row = `[...document.querySelectorAll("#content table[data-list=entities] tbody tr")].find((r) => r.textContent.includes("mission.000"))`
	if err := mgr.Transition(t.Context(), "drone-survey", "acme.drones.north.survey.mission.000", "flying", workflow.TransitionSourceRule, ""); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the change in its row, without the column", row+`.textContent.includes("flying") && `+gone)
	if err := chromedp.Do(ctx, chromedp.KeyEvent("c")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the choice by its key", `document.getElementById("columns").open && !`+box+`.checked`)
	evaluate[bool](t, ctx, `(`+box+`.click(), true)`)
	await(t, ctx, "the column is back", `!(`+gone+`)`)
}

// pictured is what the picture in the documents shows: the front page.
func pictured(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	for _, name := range []string{"internal/dashboard/pages/base.html", "internal/dashboard/pages/fleet.html"} {
		text, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(text)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// marked returns a PNG with a text (RFC 2083, 4.2.3) behind its first chunk.
func marked(png []byte, text string) []byte {
	const first = 8 + 4 + 4 + 13 + 4 // the signature and IHDR
	chunk := append([]byte("tEXt"), "Source\x00"+text...)
	out := bytes.Clone(png[:first])
	out = binary.BigEndian.AppendUint32(out, uint32(len(chunk)-4))
	out = append(out, chunk...)
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(chunk))
	return append(out, png[first:]...)
}

// The picture in the documents is of this page. "make docs" makes it anew.
func TestPictureIsCurrent(t *testing.T) {
	png, err := os.ReadFile(filepath.Join("..", "..", "docs", "dashboard.png"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(png, []byte("Source\x00"+pictured(t))) {
		t.Error(`docs/dashboard.png is of an older page: run "make docs"`)
	}
}
