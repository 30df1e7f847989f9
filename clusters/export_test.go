package clusters

import "context"

// WaysOfLogs are the ways to read a log, by name; Logs takes the first that works.
func (r *Ray) WaysOfLogs(ctx context.Context, j JobInfo) map[string]func(offset, limit int64) (string, int64, error) {
	read := func(get func(offset, limit int64) (piece, error)) func(offset, limit int64) (string, int64, error) {
		return func(offset, limit int64) (string, int64, error) {
			p, err := get(offset, limit)
			if err != nil {
				return "", 0, err
			}
			text, next := p.text(rayEnded(j.Status))
			return text, next, nil
		}
	}
	return map[string]func(offset, limit int64) (string, int64, error){
		"agent": read(func(offset, limit int64) (piece, error) { return r.agentLog(ctx, j, offset, limit) }),
		"state": read(func(offset, limit int64) (piece, error) {
			return r.streamedLog(ctx, r.stateLog(j), func() {}, offset, limit)
		}),
		"jobs": read(func(offset, limit int64) (piece, error) {
			return r.streamedLog(ctx, r.jobsLog(j), func() {}, offset, limit)
		}),
	}
}

// WithoutAgent has a client believe that a node's agent cannot be reached.
func (r *Ray) WithoutAgent(agent string) { r.agents.lost(agent) }

// Base is the URL of the dashboard.
func (r *Ray) Base() string { return r.base }
