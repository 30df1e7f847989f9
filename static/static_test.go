package static

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(t *testing.T, url, encoding string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, url, nil)
	r.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func TestEveryAssetIsHashedImmutableAndOfItsType(t *testing.T) {
	hashed := regexp.MustCompile(`^/static/.+\.[0-9a-f]{12}\.(css|js|svg)$`)
	for name, url := range byName {
		res := get(t, url, "")
		if !hashed.MatchString(url) {
			t.Errorf("%s is served as %s, without a hash", name, url)
		}
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", url, res.StatusCode)
		}
		if c := res.Header.Get("Cache-Control"); !strings.Contains(c, "immutable") || !strings.Contains(c, "max-age=31536000") {
			t.Errorf("%s: Cache-Control %q", url, c)
		}
		want := map[string]string{"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}[url[strings.LastIndex(url, ".")+1:]]
		if got := res.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: Content-Type %q, want %q", url, got, want)
		}
	}
}

func TestGzipHoldsTheSameBytes(t *testing.T) {
	url := URL("vendor/htmx.min.js")
	plain, _ := io.ReadAll(get(t, url, "gzip;q=0").Body)
	res := get(t, url, "br, gzip")
	if res.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("Content-Encoding %q", res.Header.Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(z); string(got) != string(plain) || len(got) == 0 {
		t.Errorf("%d bytes unpacked, %d plain", len(got), len(plain))
	}
}

func TestUnknownAssetsAreNotFound(t *testing.T) {
	for _, url := range []string{"/static/", "/static/css/app.css", "/static/css/app.000000000000.css", "/static/../static.go", "/static/vendor/README.md"} {
		if res := get(t, url, ""); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", url, res.StatusCode)
		}
	}
}

func TestAnUnknownNameInATemplatePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	URL("css/gone.css")
}
