package clusters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// HasPackage says whether the cluster has a package, such as gcs://_ray_pkg_1a2b.zip. Asking makes Ray keep
// it for a while, so that it does not go before a job that names it has come.
func (r *Ray) HasPackage(ctx context.Context, uri string) (bool, error) {
	path, err := packagePath(uri)
	if err != nil {
		return false, &CallError{Op: "package", URL: r.base, Err: err}
	}
	ctx, cancel := bounded(ctx, r.timeout)
	defer cancel()
	resp, err := r.send(ctx, request{op: "package", method: http.MethodGet, path: path})
	var call *CallError
	switch {
	case err == nil:
		return true, resp.Body.Close()
	case errors.As(err, &call) && call.Status == http.StatusNotFound && strings.Contains(call.Body, "does not exist"):
		return false, nil
	}
	return false, err
}

// PutPackage gives the cluster a package of size bytes. Nothing is kept of one that fails midway.
func (r *Ray) PutPackage(ctx context.Context, uri string, size int64, body io.Reader) error {
	path, err := packagePath(uri)
	if err != nil {
		return &CallError{Op: "put package", URL: r.base, Err: err}
	}
	ctx, moved, cancel := untilStalled(ctx, stallTimeout)
	defer cancel()
	resp, err := r.send(ctx, request{
		op: "put package", method: http.MethodPut, path: path, client: r.streams, size: size,
		body: &stirring{r: body, moved: moved}, header: http.Header{"Content-Type": {"application/octet-stream"}},
	})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// packagePath is where Ray's package API has a URI: /api/packages/gcs/name.
func packagePath(uri string) (string, error) {
	protocol, name, ok := strings.Cut(uri, "://")
	if !ok || protocol != "gcs" || name == "" {
		return "", fmt.Errorf("%q is no package of a cluster: those begin with gcs://", uri)
	}
	return "/api/packages/" + protocol + "/" + url.PathEscape(name), nil
}

// untilStalled gives a context that ends when moved was not called for d: what goes on may take long.
func untilStalled(ctx context.Context, d time.Duration) (_ context.Context, moved, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(fmt.Errorf("nothing moved for %v: %w", d, errTook)) })
	return ctx, func() { timer.Reset(d) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// stirring tells of each read.
type stirring struct {
	r     io.Reader
	moved func()
}

func (w *stirring) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.moved()
	return n, err
}
