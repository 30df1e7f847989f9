package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/schedulemesh/schedulemesh/handlers/api/problem"
	"github.com/schedulemesh/schedulemesh/jobs"
)

// packageTime is how long each MiB of an upload may take to arrive.
const packageTime = 60 * time.Second

// Package is a packed directory as answers have it.
type Package struct {
	Name string `json:"name" example:"_ray_pkg_3f1c7e52a9d04b61.zip"`
	URI  string `json:"uri" doc:"For working_dir and py_modules of a runtime_env." example:"gcs://_ray_pkg_3f1c7e52a9d04b61.zip"`
}

// registerPackages adds PUT and HEAD /packages/{name}, by hand: what is sent is no JSON, and is
// never in memory as a whole.
func (a *API) registerPackages(v1 chi.Router) {
	name := &huma.Param{Name: "name", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}, Example: "_ray_pkg_3f1c7e52a9d04b61.zip",
		Description: "What Ray calls it: `_ray_pkg_` and the hash of its content in hex with `.zip`, or the name of a wheel."}
	answer := map[string]*huma.MediaType{"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Package](), true, "")}}

	put := operation{id: "put-package", method: "PUT", path: "/packages/{name}", tag: "Jobs", status: 201,
		summary: "Upload a package",
		about: "A zip file, or a wheel, of at most 500 MiB, sent as it is. It is put onto the cluster that a job goes to when its runtime_env names it as `gcs://` and its name. " +
			"Nothing of it is there before all of it is. It is named after its content: one that is there already stays. What no job used for a week is removed. " +
			"The Python client packs and uploads directories by itself.",
		codes: []string{"request_timeout", "bad_request"}}
	h := put.huma()
	h.Parameters = []*huma.Param{name}
	h.RequestBody = &huma.RequestBody{Required: true, Description: "The zip file.", Content: map[string]*huma.MediaType{
		"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	h.Responses = map[string]*huma.Response{
		"201": {Description: "It is kept.", Content: answer},
		"200": {Description: "It was there already.", Content: answer},
	}
	a.huma.OpenAPI().AddOperation(&h)
	put.describe(a.huma.OpenAPI())
	v1.Put(put.path, a.putPackage)

	head := operation{id: "head-package", method: "HEAD", path: "/packages/{name}", tag: "Jobs",
		summary: "Ask for a package", about: "200 when all of it is there, 404 when it is not. Neither has a body. Asking counts as using it.", codes: []string{"unknown_package"}}
	g := head.huma()
	g.Parameters = []*huma.Param{name}
	g.Responses = map[string]*huma.Response{"200": {Description: "All of it is there."}}
	a.huma.OpenAPI().AddOperation(&g)
	head.describe(a.huma.OpenAPI())
	v1.Head(head.path, a.headPackage)
}

func packageURI(r *http.Request) (name, uri string, err error) {
	name = pathParam(r, "name")
	uri = "gcs://" + name
	if _, ok := jobs.PackageName(uri); !ok {
		err = problem.Invalid("path", "name", fmt.Sprintf("%.100q is not what Ray calls a package: _ray_pkg_ and a hash in hex with .zip, or the name of a wheel", name))
	}
	return name, uri, err
}

func tooLargePackage() error {
	return problem.New("too_large", fmt.Sprintf("the package is larger than %d MiB, which is the most: leave out with excludes what the job does not need", jobs.MaxPackage>>20))
}

func (a *API) headPackage(w http.ResponseWriter, r *http.Request) {
	name, uri, err := packageURI(r)
	there := false
	if err == nil {
		there, err = a.packages.HasPackage(r.Context(), uri)
	}
	if err == nil && !there {
		err = problem.New("unknown_package", fmt.Sprintf("package %s is not here; PUT it", name))
	}
	if err != nil {
		refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (a *API) putPackage(w http.ResponseWriter, r *http.Request) {
	name, uri, err := packageURI(r)
	switch e := r.Header.Get("Content-Encoding"); {
	case err != nil:
	case e != "" && e != "identity":
		err = problem.New("unsupported_media_type", fmt.Sprintf("Content-Encoding %q is not supported: send the file as it is", e))
	case r.ContentLength > jobs.MaxPackage:
		w.Header().Set("Connection", "close") // the rest is not worth reading
		err = tooLargePackage()
	}
	if err != nil {
		refuse(w, r, err)
		return
	}
	ctl := http.NewResponseController(w)
	body := &upload{from: http.MaxBytesReader(w, r.Body, jobs.MaxPackage), ctl: ctl}
	there, err := a.packages.HasPackage(r.Context(), uri)
	status := http.StatusCreated
	switch {
	case err != nil:
	case there: // who sends it all the same may finish
		status = http.StatusOK
		_, err = io.Copy(io.Discard, body)
	default:
		err = a.packages.SavePackage(r.Context(), uri, r.ContentLength, body)
	}
	_ = ctl.SetReadDeadline(time.Time{}) // a deadline left behind would end the request's context later
	if err != nil {
		if body.err != nil {
			err = body.problem(r)
		}
		refuse(w, r, err)
		return
	}
	out := Package{name, uri}
	writeJSON(w, r, status, &out)
}

// upload gives a sender time for each MiB, and remembers what went wrong with what was sent: whoever reads it
// may meet errors of his own.
type upload struct {
	from io.Reader
	ctl  *http.ResponseController
	got  int64
	due  int64 // when so many bytes are there the time begins anew
	err  error
}

func (u *upload) Read(into []byte) (int, error) {
	if u.got >= u.due {
		u.due = u.got + 1<<20
		_ = u.ctl.SetReadDeadline(time.Now().Add(packageTime))
	}
	n, err := u.from.Read(into)
	u.got += int64(n)
	if err != nil && err != io.EOF {
		u.err = err
	}
	return n, err
}

func (u *upload) problem(r *http.Request) error {
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(u.err, &tooLarge):
		return tooLargePackage()
	case errors.As(u.err, &network) && network.Timeout():
		return problem.New("request_timeout", fmt.Sprintf("the package did not arrive completely; %d bytes did", u.got))
	}
	return problem.New("bad_request", fmt.Sprintf("the package broke off after %d of %d bytes: send it again", u.got, r.ContentLength))
}
