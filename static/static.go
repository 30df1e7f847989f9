// Package static holds the browser's assets inside the binary. Each is served
// under a name that carries a hash of its content, so that browsers keep it for
// ever and a new version is fetched at once.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed css/*.css js/*.js vendor/*.js icon.svg
var files embed.FS

// Prefix is where assets are served.
const Prefix = "/static/"

type asset struct {
	name, kind     string
	plain, gzipped []byte
}

var (
	byName   = map[string]string{} // css/app.css → /static/css/app.1f2e3d4c5b6a.css
	byServed = map[string]*asset{}
)

var kinds = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

func init() {
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		plain, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(plain)
		ext := path.Ext(name)
		served := Prefix + strings.TrimSuffix(name, ext) + "." + hex.EncodeToString(sum[:6]) + ext
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
		_, _ = z.Write(plain) // a Buffer never fails
		_ = z.Close()
		byName[name], byServed[served] = served, &asset{name, kinds[ext], plain, b.Bytes()}
		return nil
	})
	if err != nil {
		panic("static: embedded files cannot be read: " + err.Error())
	}
}

// URL is the address of an asset by its name in this directory, such as "css/app.css".
// An unknown name is a mistake in a template and panics.
func URL(name string) string {
	served, ok := byName[name]
	if !ok {
		panic("static: no asset " + name)
	}
	return served
}

// Handler serves what URL names. Anything else, an old version's name included, is not found.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := byServed[r.URL.Path]
		if !ok {
			http.Error(w, "no such asset; reload the page", http.StatusNotFound)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "assets can only be read", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Type", a.kind)
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Vary", "Accept-Encoding")
		body := a.plain
		if acceptsGzip(r.Header.Get("Accept-Encoding")) {
			h.Set("Content-Encoding", "gzip")
			body = a.gzipped
		}
		h.Set("Content-Length", strconv.Itoa(len(body)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(body) // the browser may have gone
		}
	})
}

func acceptsGzip(accept string) bool {
	for item := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(item), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			q := strings.ReplaceAll(params, " ", "")
			return q != "q=0" && !strings.HasPrefix(q, "q=0.000") && q != "q=0.0" && q != "q=0.00"
		}
	}
	return false
}
