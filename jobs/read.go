package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/schedulemesh/schedulemesh/db/dbgen"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

// What people and programs read. It goes straight to Postgres, on any server.

// Job reads one.
func (s *Service) Job(ctx context.Context, id string) (Job, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return Job{}, s.readError(err, id)
	}
	j, err := fromRow(row)
	if err != nil {
		return j, err
	}
	if Ended(j.State) {
		if j.LogTail, err = s.q.LogTail(ctx, row.Uid); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return j, err
	}
	list := []Job{j}
	err = s.positions(ctx, list)
	return list[0], err
}

// positions fills in where those that wait stand in line.
func (s *Service) positions(ctx context.Context, list []Job) error {
	at := map[sched.ID]*Job{}
	var uids []pgtype.UUID
	for i := range list {
		if list[i].State == Queued {
			at[list[i].UID] = &list[i]
			uids = append(uids, pgUUID(list[i].UID))
		}
	}
	if len(uids) == 0 {
		return nil
	}
	rows, err := s.q.QueuePositions(ctx, uids)
	for _, r := range rows {
		at[r.Uid.Bytes].QueuePosition = int(r.N)
	}
	return err
}

func (s *Service) readError(err error, id string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &ledger.Error{Code: ErrUnknownJob.Code, Message: fmt.Sprintf("there is no job with the submission_id %q", id)}
	}
	return unavailable(err)
}

var errUnavailable = &ledger.Error{Code: "database_unavailable"}

// unavailable keeps what ctx or the database said as the cause.
func unavailable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.Join(&ledger.Error{Code: errUnavailable.Code, Message: "the database did not answer; nothing is known to be done"}, err)
}

// Wait reads a job as soon as until says yes, or when ctx ends. A database that is away for a moment does not end it.
func (s *Service) Wait(ctx context.Context, id string, until func(Job) bool) (Job, error) {
	var news <-chan struct{}
	for {
		j, err := s.Job(context.WithoutCancel(ctx), id)
		away := errors.Is(err, errUnavailable)
		if err != nil && (!away || ctx.Err() != nil) || err == nil && until(j) {
			return j, err
		}
		if err == nil && news == nil { // from now on changes are told, and those of meanwhile are read
			var cancel func()
			news, cancel = s.hub.watch(j.UID)
			defer cancel()
			continue
		}
		var again <-chan time.Time
		if away {
			again = time.After(waitAgain)
		}
		select {
		case <-news:
		case <-again:
		case <-ctx.Done():
			if err == nil {
				return j, nil
			}
		}
	}
}

const waitAgain = 200 * time.Millisecond // before a database that did not answer is asked again

// Bounds of what a list costs, however long the history is.
const (
	MostCounted = 10_000 // jobs of each state that are counted
	lookedAmong = 50_000 // of the newest jobs in which a text is looked for, and what a filter selects is counted
)

// Find lists jobs, newest first.
func (s *Service) Find(ctx context.Context, f Filter) (Page, error) {
	p := dbgen.FindJobsParams{States: orEmpty(f.States), Cluster: f.Cluster, JobID: f.JobID, Tags: orEmpty(f.Tags), Metadata: []byte("{}"), Txt: f.Text, RowLimit: int32(f.Limit) + 1}
	if f.Metadata != nil {
		p.Metadata = asJSON(f.Metadata)
	}
	var recent time.Time
	if f.Text != "" || f.Cluster != "" || f.JobID != "" || len(f.Tags) > 0 || len(f.Metadata) > 0 {
		var err error
		if recent, err = s.q.JobsSince(ctx, lookedAmong); err != nil {
			return Page{}, unavailable(err)
		}
	}
	if f.Text != "" {
		p.Since = recent
	}
	if !f.After.IsZero() {
		p.After = &f.After
	}
	if !f.Before.IsZero() {
		p.Before = &f.Before
	}
	if f.Cursor != "" {
		at, id, ok := readCursor(f.Cursor)
		if !ok {
			return Page{}, &ledger.Error{Code: "invalid", Message: "the cursor is not one that a list gave", Fields: map[string]string{"cursor": "is not one that a list gave: start without one"}}
		}
		p.CursorAt, p.CursorUid = &at, id
	}
	rows, err := s.q.FindJobs(ctx, p)
	if err != nil {
		return Page{}, unavailable(err)
	}
	counts, err := s.q.CountJobs(ctx, dbgen.CountJobsParams{Cluster: p.Cluster, JobID: p.JobID, Tags: p.Tags, Metadata: p.Metadata, Txt: p.Txt, Since: recent, After: p.After, Before: p.Before, Most: MostCounted})
	if err != nil {
		return Page{}, unavailable(err)
	}
	out := Page{Count: map[string]int{}}
	for _, c := range counts {
		if c.N == 0 {
			continue
		}
		out.Count[c.State] = int(c.N)
		if len(f.States) == 0 || slices.Contains(f.States, c.State) {
			out.Total += int(c.N)
		}
	}
	if len(rows) > f.Limit {
		rows = rows[:f.Limit]
		last := rows[len(rows)-1]
		out.Next = fmt.Sprintf("%d_%x", last.CreatedAt.UnixMicro(), last.Uid.Bytes)
	}
	if out.Items, err = fromRows(rows); err != nil {
		return out, err
	}
	if err := s.positions(ctx, out.Items); err != nil {
		return out, unavailable(err)
	}
	return out, nil
}

func readCursor(text string) (at time.Time, id pgtype.UUID, ok bool) {
	var micros int64
	var bytes []byte
	if _, err := fmt.Sscanf(text, "%d_%x", &micros, &bytes); err != nil || len(bytes) != 16 {
		return at, id, false
	}
	return time.UnixMicro(micros), pgtype.UUID{Bytes: [16]byte(bytes), Valid: true}, true
}

// Events is a job's history, oldest first.
func (s *Service) Events(ctx context.Context, id string) ([]Event, error) {
	row, err := s.q.JobBySubmission(ctx, id)
	if err != nil {
		return nil, s.readError(err, id)
	}
	rows, err := s.q.JobEvents(ctx, row.Uid)
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]Event, len(rows))
	for i, r := range rows {
		out[i] = Event{ID: r.ID, At: r.At, Type: r.Type, Actor: r.Actor, Attempt: int(r.Attempt), Cluster: r.Cluster, Code: r.Code, Message: r.Message, Detail: r.Detail}
	}
	return out, nil
}

// Outside lists what others started on a cluster, newest first.
func (s *Service) Outside(ctx context.Context, cluster string, limit int) ([]Outside, error) {
	rows, err := s.q.OutsideJobs(ctx, dbgen.OutsideJobsParams{Cluster: cluster, RowLimit: int32(limit)})
	if err != nil {
		return nil, unavailable(err)
	}
	out := make([]Outside, len(rows))
	for i, r := range rows {
		out[i] = Outside{Cluster: r.Cluster, RayID: r.RayID, Kind: r.Kind, Entrypoint: r.Entrypoint, State: r.State, Message: r.Message, StartedAt: r.StartedAt, EndedAt: r.EndedAt, SeenAt: r.SeenAt}
		_ = json.Unmarshal(r.Metadata, &out[i].Metadata)
	}
	return out, nil
}

// Live counts the jobs that have not ended, by cluster ("": nowhere yet) and state.
func (s *Service) Live(ctx context.Context) (map[string]map[string]int, error) {
	rows, err := s.q.CountLiveJobs(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	out := map[string]map[string]int{}
	for _, r := range rows {
		if out[r.Cluster] == nil {
			out[r.Cluster] = map[string]int{}
		}
		out[r.Cluster][r.State] = int(r.N)
	}
	return out, nil
}
