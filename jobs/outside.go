package jobs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/db/dbgen"
)

// keepOutside writes down what others run on a cluster. Not under e.mu.
func (e *engine) keepOutside(cluster string, all []clusters.JobInfo) {
	theirs := slices.DeleteFunc(all, func(i clusters.JobInfo) bool {
		return i.Metadata[markKey] != "" && i.Metadata[ownerKey] == e.s.o.Deployment || strings.Contains(i.Entrypoint, "-m schedulemesh.bridge")
	})
	slices.SortFunc(theirs, func(a, b clusters.JobInfo) int { return timeOf(b.Start).Compare(timeOf(a.Start)) })
	theirs = theirs[:min(len(theirs), outsideMost)]
	now := e.s.now()
	rows := make([]dbgen.SeeOutsideParams, 0, len(theirs))
	for _, i := range theirs {
		id := i.SubmissionID
		if id == "" {
			id = i.JobID
		}
		metadata := i.Metadata
		if metadata == nil {
			metadata = map[string]string{}
		}
		rows = append(rows, dbgen.SeeOutsideParams{Cluster: cluster, RayID: clean(id), Kind: i.Type, Entrypoint: clean(firstLine(i.Entrypoint)), State: i.Status, Message: clean(firstLine(i.Message)),
			Metadata: []byte(clean(strings.ReplaceAll(string(asJSON(metadata)), `\u0000`, ""))), StartedAt: i.Start, EndedAt: i.End, SeenAt: now})
	}
	ctx, cancel := context.WithTimeout(e.ctx, callTime)
	defer cancel()
	var err error
	if len(rows) > 0 {
		e.s.q.SeeOutside(ctx, rows).Exec(func(_ int, one error) { err = errors.Join(err, one) })
	}
	if err == nil {
		err = e.s.q.ForgetOutside(ctx, dbgen.ForgetOutsideParams{Cluster: cluster, Before: now})
	}
	if err != nil && e.ctx.Err() == nil {
		e.s.log.Warn("what others run on a cluster could not be written down", "cluster", cluster, "error", err)
	}
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
