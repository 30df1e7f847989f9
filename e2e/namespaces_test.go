package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/testdb"
)

// A server is killed while it clears a namespace. Another one that was there, or the next
// one that starts, goes on until nothing is left.
func TestAServerIsKilledWhileItClearsANamespace(t *testing.T) {
	for name, there := range map[string]bool{"another is there": true, "the next one starts": false} {
		t.Run(name, func(t *testing.T) {
			database := testdb.New(t)
			a := startOn(t, database, true)
			var b *server
			if there {
				b = startOn(t, database, true)
			}
			a.call("PUT", "/api/v1/namespaces/x", map[string]any{"session": "s1", "ttl": 60}, nil)
			a.call("POST", "/api/v1/pools?namespace=x", map[string]any{"name": "p", "resources": map[string]any{"cpu": 1e6}}, nil)
			const workers, each = 8, 100
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for i := range each {
						a.call("POST", "/api/v1/tasks?namespace=x", map[string]any{"task_id": fmt.Sprintf("t%d-%d", w, i), "pool": "p", "resources": map[string]any{"cpu": 1}, "actor_class": counter}, nil)
					}
				})
			}
			wg.Wait()
			go func() { _ = a.try("DELETE", "/api/v1/namespaces/x?session=s1", nil, nil) }()
			left := 0
			a.eventually("it is being cleared", 20*time.Second, func() bool {
				var n struct {
					Closing bool
					Live    int `json:"live_tasks"`
				}
				a.call("GET", "/api/v1/namespaces/x", nil, &n)
				left = n.Live
				return n.Closing
			})
			a.kill()
			killed := time.Now()
			if !there {
				b = startOn(t, database, true)
			}
			var held struct{ Created bool }
			b.call("PUT", "/api/v1/namespaces/x", map[string]any{"session": "s2", "ttl": 60}, &held)
			t.Logf("killed with %d tasks live; clean %s later", left, time.Since(killed).Round(time.Millisecond))
			var n struct {
				Pools int
				Live  int `json:"live_tasks"`
			}
			b.call("GET", "/api/v1/namespaces/x", nil, &n)
			var list struct{ Items []any }
			b.call("GET", "/api/v1/tasks?namespace=x", nil, &list)
			if !held.Created || n.Pools+n.Live+len(list.Items) != 0 {
				t.Errorf("created %v, but there are %+v and %d tasks", held.Created, n, len(list.Items))
			}
			b.verified()
		})
	}
}
