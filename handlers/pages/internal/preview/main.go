// Command preview serves the dashboard over the demo's data, to try out how a page feels:
//
//	go run ./handlers/pages/internal/preview -addr 127.0.0.1:8099 -world busy
//
// or, given a directory, takes a picture of every page and leaves:
//
//	go run ./handlers/pages/internal/preview -world nasty -shots /tmp/shots
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/handlers/pages/internal/demo"
	"github.com/schedulemesh/schedulemesh/web"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8099", "where to listen")
	world := flag.String("world", "busy", "busy, empty, nasty or down")
	churn := flag.Duration("churn", 0, "how often something changes by itself, 0 for never")
	dir := flag.String("shots", "", "take pictures into this directory instead of serving")
	only := flag.String("only", "", "with -shots: only pictures whose name contains this")
	flag.Parse()

	now := time.Now().UTC()
	var w *demo.World
	switch *world {
	case "busy":
		w = demo.Busy(now)
	case "empty":
		w = demo.Empty(now)
	case "nasty":
		w = demo.Busy(now).Nasty()
	case "down":
		w = demo.Busy(now)
		w.Fail = &pages.Refusal{ErrorCode: "database_unavailable", Message: "The database does not answer, so nothing can be read."}
		if *churn > 0 {
			w.Fail = errors.New("a defect")
		}
	default:
		log.Fatalf("unknown world %q: busy, empty, nasty or down", *world)
	}
	if *churn > 0 {
		go func() {
			topics := []pages.Topic{pages.Tasks, pages.Pools, pages.Preemptions, pages.Agents, pages.Events}
			for range time.Tick(*churn) {
				w.Tell(topics[rand.IntN(len(topics))])
			}
		}()
	}
	site := pages.New(w, w, w, pages.Options{Version: "preview", SignOut: "/sign-out"})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sign-in", func(rw http.ResponseWriter, r *http.Request) {
		pages.SignIn(rw, r, http.StatusOK, web.SignIn{Action: "/sign-in", Next: "/", Problem: r.URL.Query().Get("problem")})
	})
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		site.ServeHTTP(rw, r.WithContext(pages.WithUser(r.Context(), "mei")))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	if *dir == "" {
		fmt.Printf("http://%s\n", l.Addr())
		log.Fatal(server.Serve(l))
	}
	go func() { log.Print(server.Serve(l)) }()
	if err := shoot("http://"+l.Addr().String(), *dir, *world, *only); err != nil {
		log.Fatal(err)
	}
}
