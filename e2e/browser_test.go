package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is one tab of a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{os.Getenv("SCHEDULEMESH_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); name != "" && err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("no Chromium: `make test` installs it when it may")
		}
		t.Skip("no Chromium on this machine: install it, or set SCHEDULEMESH_CHROMIUM")
	}
	options := []chromedp.ExecAllocatorOption{chromedp.Headless, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.ExecPath(path), chromedp.WindowSize(1360, 980), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true)}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.complain("script: " + e.ExceptionDetails.Text)
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == "error" {
				b.complain(e.Entry.Text + " " + e.Entry.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.do("listening to its log", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, cdplog.Enable, cdp.Empty{})
		return err
	}))
	return b
}

func (b *browser) complain(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, what)
}

// do runs steps, which have 30 seconds together.
func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v; the page says: %s", what, err, b.text())
	}
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.do("opening "+url, chromedp.Navigate(url), chromedp.WaitVisible("main"))
}

// text is what the page shows.
func (b *browser) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`(document.querySelector("main") ?? document.body).innerText`))
	return text
}

// shows waits until the page shows every one of the texts, without loading it again.
func (b *browser) shows(texts ...string) {
	b.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		text, missing := b.text(), ""
		for _, want := range texts {
			if !strings.Contains(text, want) {
				missing = want
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the page does not show %q within a minute; it says: %s", missing, text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// script runs JavaScript that answers whether it found what it wanted.
func (b *browser) script(what, code string, args ...any) {
	b.t.Helper()
	for i, a := range args {
		quoted, _ := json.Marshal(a)
		args[i] = string(quoted)
	}
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	found, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf(code, args...)))
	if err != nil || !found {
		b.t.Fatalf("%s: found %v, %v; the page says: %s", what, found, err, b.text())
	}
}

// fill types into form fields, by their names; name#2 is the second of that name.
func (b *browser) fill(fields map[string]string) {
	b.t.Helper()
	for name, value := range fields {
		b.script("filling "+name, `(() => {
			const e = document.querySelector("main form [name=" + JSON.stringify(%s) + "]");
			if (!e) return false;
			e.focus(); e.value = %s;
			e.dispatchEvent(new Event("input", {bubbles: true})); e.dispatchEvent(new Event("change", {bubbles: true}));
			return e.value !== "" || e.tagName !== "SELECT";
		})()`, name, value)
	}
}

// press clicks the button or link with this text, and waits for the page it leads to.
func (b *browser) press(text string) {
	b.t.Helper()
	b.script("pressing "+text, `(() => {
		const e = [...document.querySelectorAll("main button, main a")].find(e => e.innerText.trim().startsWith(%s) && e.offsetParent !== null);
		if (!e) return false;
		e.scrollIntoView(); e.click(); return true;
	})()`, text)
}

// picture keeps a screenshot when SCHEDULEMESH_SCREENSHOTS names a directory.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("SCHEDULEMESH_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
		shot, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{})
		return shot.Data, err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
