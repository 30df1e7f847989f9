package clustertest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"
)

// Kind is a way to misbehave.
type Kind int

// Ways to misbehave.
const (
	Slow           Kind = iota + 1 // answers after Delay
	Fail                           // answers Status (500) and Body, and does nothing
	Garbage                        // answers 200 and a page of HTML, and does nothing
	CutBefore                      // does nothing and cuts the connection
	AcceptThenCut                  // does what it was asked and cuts the connection
	AcceptThen500                  // does what it was asked and answers Status (500)
	AcceptThenHang                 // does what it was asked and does not answer
	Hang                           // does nothing and does not answer
	CutHalfway                     // does what it was asked and cuts in the middle of the answer
)

// Fault says which calls go wrong, and how.
type Fault struct {
	Kind   Kind
	Method string // "": any
	Path   string // begins with this; "": any
	Exact  bool   // is this
	Skip   int    // leaves the first ones alone
	Times  int    // so many calls; 0: all
	Delay  time.Duration
	Status int
	Body   string
}

// armed is a fault on its way.
type armed struct {
	Fault
	seen int
}

// Break has calls go wrong until mend is called. What was broken first counts first.
func (c *Cluster) Break(f Fault) (mend func()) {
	a := &armed{Fault: f}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, a)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.faults {
			if other == a {
				c.faults = append(c.faults[:i:i], c.faults[i+1:]...)
				return
			}
		}
	}
}

// Calls counts the calls whose method and path begin with this, such as "POST /api/jobs/".
func (c *Cluster) Calls(prefix string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.calls {
		if strings.HasPrefix(call, prefix) {
			n++
		}
	}
	return n
}

// strike notes a call and says what goes wrong with it.
func (c *Cluster) strike(r *http.Request) *Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, r.Method+" "+r.URL.Path)
	for _, a := range c.faults {
		if a.Method != "" && a.Method != r.Method || !strings.HasPrefix(r.URL.Path, a.Path) || a.Exact && r.URL.Path != a.Path {
			continue
		}
		a.seen++
		if a.seen > a.Skip && (a.Times == 0 || a.seen <= a.Skip+a.Times) {
			f := a.Fault
			return &f
		}
	}
	return nil
}

func (c *Cluster) handle(w http.ResponseWriter, r *http.Request) {
	f := c.strike(r)
	if f == nil {
		c.answer(w, r)
		return
	}
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
		}
	}
	status := f.Status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	switch f.Kind {
	case Fail:
		http.Error(w, f.Body, status)
	case Garbage:
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><html><head><title>Welcome to nginx!</title></head><body>It works.</body></html>"))
	case CutBefore:
		sever(w)
	case Hang:
		<-r.Context().Done()
	case AcceptThenCut, AcceptThen500, AcceptThenHang, CutHalfway:
		done := httptest.NewRecorder()
		c.answer(done, r)
		switch f.Kind {
		case AcceptThenCut:
			sever(w)
		case AcceptThen500:
			http.Error(w, f.Body, status)
		case AcceptThenHang:
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Length", "1000000")
			w.WriteHeader(done.Code)
			_, _ = w.Write(done.Body.Bytes()[:done.Body.Len()/2])
			_ = http.NewResponseController(w).Flush()
			sever(w)
		}
	default:
		c.answer(w, r)
	}
}

// sever cuts a connection without a word.
func sever(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
