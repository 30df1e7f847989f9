package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
)

const somePackage = "/api/v1/packages/_ray_pkg_0123456789abcdef.zip"

func TestAPackageIsUploadedOnce(t *testing.T) {
	f := &fake{}
	a := newAPI(f)
	send(t, a, "HEAD", somePackage, "").want(t, 404, "unknown_package")
	put := func() reply {
		r := httptest.NewRequest("PUT", somePackage, strings.NewReader("PK and the rest"))
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return reply{Response: w.Result(), text: w.Body.String()}
	}
	res := put()
	res.want(t, 201, "")
	if !strings.Contains(res.text, `"uri":"gcs://_ray_pkg_0123456789abcdef.zip"`) {
		t.Error(res.text)
	}
	if f.call != "SavePackage" || arg[string](t, f, 0) != "gcs://_ray_pkg_0123456789abcdef.zip" || arg[int64](t, f, 1) != 15 || string(f.package_) != "PK and the rest" {
		t.Errorf("asked %s %v", f.call, f.args)
	}
	if res := send(t, a, "HEAD", somePackage, ""); res.StatusCode != 200 || res.text != "" {
		t.Errorf("%d %q", res.StatusCode, res.text)
	}
	if res := put(); res.StatusCode != 200 || f.call != "HasPackage" {
		t.Errorf("again: %d, asked %s", res.StatusCode, f.call)
	}
}

func TestWheelsHaveTheirOwnNames(t *testing.T) {
	f := &fake{}
	send(t, newAPI(f), "PUT", "/api/v1/packages/my_pkg-1.0%2Blocal-py3-none-any.whl", "PK").want(t, 201, "")
	if got := arg[string](t, f, 0); got != "gcs://my_pkg-1.0+local-py3-none-any.whl" {
		t.Error(got)
	}
}

func TestPackagesThatCannotBe(t *testing.T) {
	for _, name := range []string{"x.zip", "_ray_pkg_.zip", "_ray_pkg_0123456789.tar", "..%2F_ray_pkg_0123456789.zip", "a%20b.whl", "%00.whl", "_ray_pkg_ABCDEF0123.zip"} {
		for _, method := range []string{"PUT", "HEAD"} {
			f := &fake{}
			send(t, newAPI(f), method, "/api/v1/packages/"+name, "PK").want(t, 422, "invalid")
			if f.call != "" {
				t.Errorf("%s was asked", f.call)
			}
		}
	}
	send(t, newAPI(&fake{}), "PUT", somePackage, "PK", "Content-Encoding", "gzip").want(t, 415, "unsupported_media_type")
	res := send(t, newAPI(&fake{}), "GET", somePackage, "")
	res.want(t, 405, "method_not_allowed")
	if res.Header.Get("Allow") != "HEAD, PUT" {
		t.Errorf("Allow %q", res.Header.Get("Allow"))
	}
	f := &fake{err: &ledger.Error{Code: "invalid", Message: "what was sent is not a zip file", Fields: map[string]string{"body": "what was sent is not a zip file"}}}
	send(t, newAPI(f), "PUT", somePackage, "no").want(t, 422, "invalid")
}

// rawPut sends the head of an upload and then what follows, and answers with what came back.
func rawPut(t *testing.T, f *fake, length int64, body io.Reader) (status int, text string) {
	t.Helper()
	srv := httptest.NewServer(newAPI(f))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", somePackage, length)
	if body != nil {
		_, _ = io.Copy(conn, body)
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestAnUploadThatBreaksOff(t *testing.T) {
	f := &fake{}
	if status, text := rawPut(t, f, 1000, strings.NewReader("PK half of it")); status != 400 || !strings.Contains(text, "13 of 1000 bytes") {
		t.Errorf("%d %s", status, text)
	}
	if f.package_ != nil {
		t.Error("it was kept")
	}
}

func TestAPackageBeyondTheLimitIsRefusedUnread(t *testing.T) {
	if status, text := rawPut(t, &fake{}, 501<<20, nil); status != 413 || !strings.Contains(text, "500 MiB") {
		t.Errorf("%d %s", status, text)
	}
}

func TestADatabaseThatFailsIsNoFaultOfTheSender(t *testing.T) {
	f := &fake{}
	f.saving = func(body io.Reader) error {
		_, _ = io.CopyN(io.Discard, body, 2)
		return &ledger.Error{Code: "database_unavailable", Message: "the database cannot be reached"}
	}
	send(t, newAPI(f), "PUT", somePackage, "PK and more").want(t, 503, "database_unavailable")
}

func TestALargePackagePassesThrough(t *testing.T) {
	const size = 64 << 20
	f := &fake{}
	n := int64(0)
	f.saving = func(body io.Reader) (err error) {
		n, err = io.Copy(io.Discard, body)
		return err
	}
	srv := httptest.NewServer(newAPI(f))
	defer srv.Close()
	for _, body := range []io.Reader{io.LimitReader(letters{}, size), bytes.NewReader(make([]byte, size))} { // in chunks, and with its length
		r, _ := http.NewRequestWithContext(t.Context(), "PUT", srv.URL+somePackage, body)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 201 || n != size {
			t.Errorf("%d, %d bytes", res.StatusCode, n)
		}
	}
}
