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
			if err := chromedp.Run(ctx, chromedp.KeyEvent(k)); err != nil {
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
	click(t, ctx, `.copy[data-copy^="lifecyclectl get"]`)
	await(t, ctx, "the answer of the button", `/Copied|Not allowed/.test(document.querySelector('.copy[data-copy^="lifecyclectl get"]').textContent)`)
	if n := evaluate[int](t, ctx, `document.querySelectorAll(".gantt rect").length`); n < 3 {
		t.Errorf("the life of the entity has %d bars", n)
	}
}

// pictured is what the picture in the documents shows: the page of an entity.
func pictured(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	for _, name := range []string{"internal/dashboard/pages/entity.html", "../internal/diagram/layout.go", "../internal/diagram/svg.go"} {
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
