package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/schedulemesh/schedulemesh/app"
	"github.com/schedulemesh/schedulemesh/local"
)

// defaultData is where `up` keeps its data when nobody says where: beside the checkout
// it runs in, else in the user's own place.
func defaultData() (string, error) {
	if inCheckout(pythonProject) {
		return ".data", nil
	}
	return local.DataDir()
}

// pythonProject is where a checkout has its Python packages.
const pythonProject = "python"

// dataUsage explains a setting for the data directory.
func dataUsage(what string) string {
	return what + "; default .data in a checkout, elsewhere schedulemesh in $XDG_DATA_HOME, ~/.local/share or, for root, /var/lib"
}

// inCheckout says whether the Python packages that a checkout pins are there.
func inCheckout(project string) bool {
	_, err := os.Stat(filepath.Join(project, "requirements.lock"))
	return err == nil
}

// serverNotice is what a running server says of itself to the user's other programs;
// schedulemesh.local in Python reads it.
type serverNotice struct {
	PID        int    `json:"pid"`
	Host       string `json:"host"` // homes are shared among machines, loopback is not
	URL        string `json:"url"`
	TokenFile  string `json:"token_file"`
	RayAddress string `json:"ray_address"`
	Data       string `json:"data"`
	Deployment string `json:"deployment"`
	Parent     int    `json:"parent,omitempty"` // the process it ends with
}

// announce tells this user's other programs of a server that only this machine
// reaches, and which Ray cluster it is on once that is known, until ctx ends. A server
// works without: what goes wrong is a warning.
func announce(ctx context.Context, a *app.App, say serverNotice, log *slog.Logger) (forget func(context.Context) error) {
	if !a.OnLoopback() {
		return func(context.Context) error { return nil }
	}
	say.PID, say.URL, say.TokenFile = os.Getpid(), a.URL(), absolute(say.TokenFile)
	say.Host, _ = os.Hostname()
	notice, err := postNotice(ctx, a, &say)
	if err != nil {
		log.Warn("this server is not in the list of servers on this machine, so that scripts must be told its URL", "error", err)
		return func(context.Context) error { return nil }
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		followRay(ctx, a, notice, say, log)
	}()
	return func(context.Context) error {
		stop()
		<-done
		return notice.Remove()
	}
}

func postNotice(ctx context.Context, a *app.App, say *serverNotice) (_ *local.Notice, err error) {
	if say.Deployment, err = a.Deployment(ctx); err != nil {
		return nil, err
	}
	dir, err := local.StateDir()
	if err != nil {
		return nil, err
	}
	return local.PostNotice(filepath.Join(dir, "servers"), say)
}

func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

const lookAtRay = 100 * time.Millisecond

// followRay keeps the address of the Ray cluster in the notice.
func followRay(ctx context.Context, a *app.App, notice *local.Notice, say serverNotice, log *slog.Logger) {
	for tick := time.NewTicker(lookAtRay); ; {
		if address, _, _ := a.Ray(); address != "" && address != say.RayAddress {
			say.RayAddress = address
			if err := notice.Write(say); err != nil {
				log.Warn("the Ray cluster's address is not in the list of servers on this machine", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// rayPatience is how long a Ray cluster may be out of reach before it counts as gone:
// the sidecar may be started again, and its head.
const rayPatience = 15 * time.Second

// awaitRayGone returns when the Ray cluster the server was connected to is gone: when
// another one is in its place, or when it cannot be reached for long. At the beginning
// that may take twice as long: the claim of a server that died has to run out.
// look is App.Ray.
func awaitRayGone(ctx context.Context, look func() (address, cluster string, up bool), patience time.Duration) {
	var first string
	seen := time.Now()
	for tick := time.NewTicker(lookAtRay); ; {
		_, cluster, up := look()
		if first == "" {
			first = cluster
		}
		if up {
			seen = time.Now()
		}
		out := time.Since(seen)
		if cluster != first || out > 2*patience || (out > patience && first != "") {
			tick.Stop()
			return
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}
