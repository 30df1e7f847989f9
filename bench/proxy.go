package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// timing stands in front of a dashboard and keeps how long Ray took for each submission, in
// milliseconds by submission_id, which it tells at /took.
func timing(dashboard string) (*httptest.Server, error) {
	target, err := url.Parse(dashboard)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	took := map[string]float64{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/took":
			mu.Lock()
			defer mu.Unlock()
			_ = json.NewEncoder(w).Encode(took)
		case r.Method == http.MethodPost && strings.TrimSuffix(r.URL.Path, "/") == "/api/jobs":
			r.Header.Del("Accept-Encoding") // to be read
			answer := httptest.NewRecorder()
			began := time.Now()
			proxy.ServeHTTP(answer, r)
			ms := float64(time.Since(began).Microseconds()) / 1000
			var said struct {
				ID string `json:"submission_id"`
			}
			if json.Unmarshal(answer.Body.Bytes(), &said) == nil {
				mu.Lock()
				took[said.ID] = ms
				mu.Unlock()
			}
			w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		default:
			proxy.ServeHTTP(w, r)
		}
	})), nil
}
