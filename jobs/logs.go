package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/ledger"
)

// What jobs print stays in their clusters; of what is over the end is kept here too.

// onCluster is a job in Ray, as far as reading its log goes.
func (s *Service) onCluster(ctx context.Context, j Job) (Ray, clusters.JobInfo, error) {
	ray, ok := s.o.Client(j.Cluster)
	if !ok {
		return nil, clusters.JobInfo{}, fmt.Errorf("the cluster %s is not configured any more", j.Cluster)
	}
	info, err := ray.Job(ctx, j.RayID)
	if err == nil && !ours(info, &j) {
		err = clusters.ErrNoJob // another's, which has the id by now
	}
	return ray, info, err
}

// nowhere tells that nothing can have been printed yet.
func nowhere(j Job) bool { return j.AcceptedAt == nil }

// Logs reads at most limit bytes of what a job printed from an offset on.
func (s *Service) Logs(ctx context.Context, id string, offset, limit int64) (Log, error) {
	j, err := s.Job(ctx, id)
	if err != nil {
		return Log{}, err
	}
	if nowhere(j) {
		return Log{Ended: Ended(j.State)}, nil
	}
	ray, info, err := s.onCluster(ctx, j)
	if err == nil {
		var out Log
		if out.Text, out.Next, err = ray.Logs(ctx, info, offset, limit); err == nil {
			out.Ended = Ended(j.State) && int64(len(out.Text)) < limit
			return out, nil
		}
	}
	if Ended(j.State) && ctx.Err() == nil {
		return kept(j, offset, limit), nil
	}
	return Log{}, unreachable(j, err)
}

// kept is the end of a log that we have ourselves. Its offsets are its own.
func kept(j Job, offset, limit int64) Log {
	size := int64(len(j.LogTail))
	if offset < 0 {
		offset += size
	}
	offset = min(max(offset, 0), size)
	end := min(offset+limit, size)
	for end > offset && end < size && j.LogTail[end]&0xC0 == 0x80 { // never within a character
		end--
	}
	return Log{Text: j.LogTail[offset:end], Next: end, Ended: end == size, Kept: true}
}

func unreachable(j Job, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return errors.Join(&ledger.Error{Code: ErrUnreachable.Code, Message: fmt.Sprintf("the log of %s cannot be read from %s: %s", j.SubmissionID, j.Cluster, reasonOf(err))}, err)
}

// Follow hands over what a job prints from an offset on, until it is over, give fails or ctx ends.
func (s *Service) Follow(ctx context.Context, id string, offset int64, give func(Log) error) error {
	for {
		j, err := s.Wait(ctx, id, func(j Job) bool { return !nowhere(j) || Ended(j.State) })
		if err != nil || ctx.Err() != nil {
			return cmp.Or(err, ctx.Err())
		}
		if nowhere(j) {
			return give(Log{Ended: true})
		}
		ray, info, err := s.onCluster(ctx, j)
		if err == nil {
			var refused error
			err = ray.Follow(ctx, info, offset, func(text string, next int64) error {
				offset, refused = next, give(Log{Text: text, Next: next})
				return refused
			})
			if refused != nil || ctx.Err() != nil {
				return cmp.Or(refused, ctx.Err())
			}
		}
		read := j
		if err == nil { // printed all: our row may be a moment behind
			if read, err = s.Wait(ctx, id, func(x Job) bool { return Ended(x.State) || x.Attempt != j.Attempt }); err != nil || ctx.Err() != nil {
				return cmp.Or(err, ctx.Err())
			}
		} else if read, err = s.after(ctx, j, err); err != nil {
			return err
		}
		switch {
		case read.Attempt != j.Attempt:
			offset = 0
			if err := give(Log{Text: fmt.Sprintf("\n[attempt %d]\n", read.Attempt), Next: 0}); err != nil {
				return err
			}
		case Ended(read.State):
			return give(Log{Next: offset, Ended: true})
		}
	}
}

// after decides what follows when a log could not be read on: nothing for a job that is over, else another try.
func (s *Service) after(ctx context.Context, j Job, cause error) (Job, error) {
	if errors.Is(cause, clusters.ErrNoJob) || Ended(j.State) {
		read, err := s.Job(ctx, j.SubmissionID)
		if err != nil || Ended(read.State) || read.Attempt != j.Attempt {
			return read, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, followAgain)
	defer cancel()
	read, err := s.Wait(wait, j.SubmissionID, func(x Job) bool { return Ended(x.State) || x.Attempt != j.Attempt })
	if err == nil {
		err = ctx.Err()
	}
	return read, err
}
