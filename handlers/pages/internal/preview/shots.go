package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var pagesToShoot = []struct{ name, path string }{
	{"overview", "/"}, {"pools", "/pools"}, {"pool", "/pools/train-a100"}, {"pool-groups", "/pools/research-shared"}, {"task-group", "/tasks/reward-07"}, {"pool-groups-edit", "/pools/research-shared/edit"}, {"pool-idle", "/pools/edge"}, {"pool-new", "/pools/new"}, {"pool-edit", "/pools/train-a100/edit"},
	{"tasks", "/tasks"}, {"tasks-none", "/tasks?q=nothing-like-this"}, {"task", "/tasks/llama-70b-pretrain"}, {"task-log", "/tasks/llama-7b-rlhf?tab=log"},
	{"task-state", "/tasks/llama-70b-pretrain?tab=state"}, {"task-spec", "/tasks/llama-70b-pretrain?tab=spec"}, {"task-failed", "/tasks/tok-bench-9"},
	{"submit", "/tasks/new"}, {"confirm", "/tasks/llama-70b-pretrain/cancel"}, {"policy", "/policy"}, {"policy-text", "/policy?format=text"},
	{"versions", "/policy/versions"}, {"version", "/policy/versions/5"}, {"rollback", "/policy/versions/5/rollback"}, {"what-if", "/what-if?pool=research-shared&priority=9&gpu=2&cpu=16&labels=role%3Dtrain"}, {"what-if-both", "/what-if?pool=train-a100&gpu=8&draft=cross_pool_priority_threshold:+4"}, {"what-if-draft", "/what-if?draft=cross_pool_priority_threshold:+4"},
	{"what-if-wrong", "/what-if?draft=cross_pool:+%5B&gpu=two&pool=batch"}, {"backtest", "/policy/backtest/done"}, {"replaying", "/policy/backtest/long"}, {"preemptions", "/preemptions"}, {"preemption", "/preemptions/481"},
	{"mesh-clusters", "/clusters"}, {"mesh-cluster", "/clusters/gpu_cluster"}, {"mesh-cluster-down", "/clusters/gpu-east?hours=6"}, {"mesh-cluster-new", "/clusters/new"}, {"mesh-cluster-edit", "/clusters/gpu_cluster/edit"}, {"mesh-cluster-hold", "/clusters/gpu_cluster/hold"}, {"mesh-cluster-remove", "/clusters/cpu_cluster/remove"},
	{"mesh-jobs", "/jobs"}, {"mesh-jobs-all", "/jobs?state=all"}, {"mesh-jobs-none", "/jobs?q=nothing-like-this"}, {"mesh-outside", "/jobs?from=outside"}, {"mesh-job-running", "/jobs/sub_train_8f31"}, {"mesh-job-waits", "/jobs/sub_eval_70b"}, {"mesh-job-lost", "/jobs/sub_sweep_lr_03"}, {"mesh-job-failed", "/jobs/sub_tok_9"}, {"mesh-job-log", "/jobs/sub_train_8f31/log"}, {"mesh-job-new", "/jobs/new"}, {"mesh-job-stop", "/jobs/sub_train_8f31/stop"},
	{"agents", "/agents"}, {"nodes", "/nodes"}, {"drain", "/nodes/gpu-01/drain"}, {"line", "/pools/train-a100?line=11"}, {"hold", "/pools/batch/hold"}, {"held", "/pools/ingest"}, {"events", "/events"}, {"found", "/jump?q=llama"}, {"sign-in", "/sign-in?problem=No+such+token."}, {"missing", "/tasks/gone"}, {"no-page", "/nope"},
}

// tooWide names what sticks out of the window, "" for nothing.
const tooWide = `(() => {
  const w = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= w) return "";
  return [...document.querySelectorAll("main *, .top *, .side *")]
    .filter(e => e.getBoundingClientRect().right > w + 1 && !e.closest(".scroll, .code, .diff, .tabs, nav"))
    .slice(0, 5).map(e => e.tagName + "." + e.getAttribute("class")).join(", ") || "something";
})()`

// nameless finds controls and links that a screen reader could not name, "" for none.
const nameless = `[...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, summary, svg[role=img]")]
  .filter(e => e.checkVisibility() && !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)))
  .map(e => e.outerHTML.slice(0, 120)).join("\n")`

// shoot takes every page in light, dark and at a phone's width, and says what the browser complained about.
func shoot(origin, dir, world, only string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.Flag("disable-quic", true), chromedp.Flag("hide-scrollbars", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	defer stop()
	ctx, stop := chromedp.NewContext(alloc)
	defer stop()
	err := chromedp.Listen(ctx, func(e any) {
		switch e := e.(type) {
		case *cdplog.EventEntryAdded:
			if !strings.Contains(e.Entry.Text, "404") {
				log.Printf("browser: %s %v", e.Entry.Text, e.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			log.Printf("browser: %+v", e.ExceptionDetails)
		}
	})
	if err != nil {
		return err
	}
	if err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, cdplog.Enable, cdp.Empty{})
		return err
	})); err != nil {
		return err
	}
	for _, look := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"light", 1360, 900, "light"}, {"dark", 1360, 900, "dark"}, {"phone", 390, 844, "light"}} {
		for _, p := range pagesToShoot {
			name := fmt.Sprintf("%s-%s-%s.png", world, p.name, look.name)
			if !strings.Contains(name, only) {
				continue
			}
			err := chromedp.Do(ctx,
				chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
					if _, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.width, Height: look.height, DeviceScaleFactor: 1, Mobile: look.width < 500}); err != nil {
						return err
					}
					_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}})
					return err
				}),
				chromedp.Navigate(origin+p.path),
				chromedp.Sleep(300*time.Millisecond))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			wide, err := chromedp.Run(ctx, chromedp.Evaluate[string](tooWide))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if wide != "" {
				log.Printf("%s is wider than its window: %s", name, wide)
			}
			bare, err := chromedp.Run(ctx, chromedp.Evaluate[string](nameless))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if bare != "" {
				log.Printf("%s has controls without a name: %s", name, bare)
			}
			height, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("document.documentElement.scrollHeight"))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			png, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
				beyond := true
				shot, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{
					CaptureBeyondViewport: &beyond, Clip: &page.Viewport{Width: float64(look.width), Height: max(min(height, 2600), float64(look.height)), Scale: 1},
				})
				return shot.Data, err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
