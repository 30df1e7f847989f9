package pages

import (
	"encoding/base64"
	"encoding/json"
	"net/http"

	"github.com/schedulemesh/schedulemesh/web"
)

// Messages travel to the next page in a cookie, so that a reload does not repeat them.
const flashCookie = "schedulemesh_flash"

func addFlash(w http.ResponseWriter, r *http.Request, f web.Flash) {
	f.Text = web.Cut(f.Text, 800) // browsers keep 4 KiB
	b, err := json.Marshal([]web.Flash{f})
	if err != nil {
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: flashCookie, Value: base64.RawURLEncoding.EncodeToString(b), Path: "/", MaxAge: 60,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
}

func takeFlashes(w http.ResponseWriter, r *http.Request) []web.Flash {
	c, err := r.Cookie(flashCookie)
	if err != nil || c.Value == "" {
		return nil
	}
	http.SetCookie(w, &http.Cookie{Name: flashCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil})
	b, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return nil
	}
	var fs []web.Flash
	if json.Unmarshal(b, &fs) != nil || len(fs) > 5 {
		return nil
	}
	for i := range fs {
		if fs[i].Kind != "warn" && fs[i].Kind != "bad" {
			fs[i].Kind = "ok"
		}
	}
	return fs
}
