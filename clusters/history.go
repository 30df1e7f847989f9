package clusters

import (
	"context"
	"slices"
	"time"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// trimEvery is how often old samples are removed.
const trimEvery = time.Minute

// Sample adds a point to the history of clusters.
func (r *Registry) Sample(ctx context.Context, samples map[string]Sample) error {
	if len(samples) == 0 {
		return nil
	}
	var p dbgen.AddClusterSamplesParams
	for _, name := range sortedKeys(samples) {
		s := samples[name]
		p.Clusters, p.Ats, p.Scores = append(p.Clusters, name), append(p.Ats, s.At), append(p.Scores, float32(s.Score))
		p.Totals, p.Useds = append(p.Totals, string(s.Total.AppendJSON(nil))), append(p.Useds, string(s.Used.AppendJSON(nil)))
		p.Jobs = append(p.Jobs, int32(s.Jobs))
	}
	if err := r.q.AddClusterSamples(ctx, p); err != nil {
		return unavailable(err)
	}
	r.mu.Lock()
	due := time.Since(r.trimmed) > trimEvery
	if due {
		r.trimmed = time.Now()
	}
	r.mu.Unlock()
	if due {
		return r.q.TrimClusterSamples(ctx)
	}
	return nil
}

// Bounds on what History answers.
const (
	historyKept   = 6 * time.Hour
	usualPoints   = 240
	maximumPoints = 2000
)

// History is how a cluster was since a moment, at most six hours ago, oldest first. More samples than points (0: 240)
// are drawn together so that no dip and no peak is lost: the lowest score, the most used, the most jobs.
func (r *Registry) History(ctx context.Context, name string, since time.Time, points int) ([]Sample, error) {
	if _, ok := r.Get(name); !ok {
		return nil, unknownCluster(name)
	}
	if oldest := time.Now().Add(-historyKept); since.Before(oldest) {
		since = oldest
	}
	if points <= 0 {
		points = usualPoints
	}
	rows, err := r.q.ClusterSamples(ctx, dbgen.ClusterSamplesParams{Cluster: name, Since: since})
	if err != nil {
		return nil, unavailable(err)
	}
	samples := make([]Sample, len(rows))
	for i, row := range rows {
		samples[i] = Sample{At: row.At, Score: float64(row.Score), Jobs: int(row.Jobs)}
		if err := samples[i].Total.UnmarshalJSON(row.Total); err != nil {
			return nil, err
		}
		if err := samples[i].Used.UnmarshalJSON(row.Used); err != nil {
			return nil, err
		}
	}
	return thin(samples, min(points, maximumPoints)), nil
}

// thin draws samples of the same stretch of time together until there are at most points.
func thin(samples []Sample, points int) []Sample {
	if len(samples) <= points {
		return samples
	}
	first := samples[0].At
	width := samples[len(samples)-1].At.Sub(first)/time.Duration(points) + 1
	var out []Sample
	stretch := time.Duration(-1)
	for _, s := range samples {
		if n := s.At.Sub(first) / width; n != stretch {
			stretch = n
			out = append(out, s)
			continue
		}
		last := &out[len(out)-1]
		last.At, last.Total = s.At, s.Total
		last.Score, last.Used, last.Jobs = min(last.Score, s.Score), last.Used.Max(s.Used), max(last.Jobs, s.Jobs)
	}
	return slices.Clip(out)
}
