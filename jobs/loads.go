package jobs

import (
	"context"
	"encoding/json"

	"github.com/schedulemesh/schedulemesh/sched"
)

// Loads is what our jobs ask for on each cluster, as the rows say, for people: what runs in Running, what was sent
// there and does not run yet only in Live. Waiting and Ended are left empty.
func (s *Service) Loads(ctx context.Context) (map[string]Load, error) {
	rows, err := s.q.LiveRequirements(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	out := map[string]Load{}
	for _, r := range rows {
		var one, all sched.Resources
		if err := json.Unmarshal(r.Requirements, &one); err != nil {
			return nil, err
		}
		one.Each(func(name string, v int64) { all = all.With(name, v*r.N) })
		l := out[r.Cluster]
		l.Live = l.Live.Add(all)
		if r.State != Submitting && r.State != Pending {
			l.Running = l.Running.Add(all)
		}
		if all.IsZero() {
			l.Count += int(r.N)
		}
		out[r.Cluster] = l
	}
	return out, nil
}
