package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/schedulemesh/schedulemesh/handlers/pages"
	"github.com/schedulemesh/schedulemesh/web"
)

func job(id, state, cluster, entrypoint string, created time.Time, tags ...string) web.Job {
	return web.Job{
		JobRow: web.JobRow{ID: id, JobID: "nightly", State: state, Cluster: cluster, Entrypoint: entrypoint, Attempt: 1, Created: created, Tags: tags, Request: web.Resources{"cpu": 2000}},
		UID:    uid(id), Owner: "mei", RayID: id, Priority: 5, Reserve: "entrypoint", Queued: created,
	}
}

// backlog is jobs in every state.
func (w *World) backlog() {
	at := func(d time.Duration) time.Time { return w.now.Add(-d) }
	ms := time.Millisecond

	run := job("sub_train_8f31", "RUNNING", "gpu_cluster", "python /srv/train/main.py --epochs 100 --batch-size 32", at(14*time.Minute), "training", "gpu")
	run.JobID, run.Request, run.Started, run.Accepted, run.Placed = "torch_training", web.Resources{"gpu": 4000, "cpu": 16000, "memory": 64 << 10}, at(13*time.Minute), at(13*time.Minute+50*time.Second), at(13*time.Minute+51*time.Second)
	run.Why = &web.JobPlacement{Cluster: "gpu_cluster", Reason: "best of 2 with room for 4 gpu · 16 cpu · 64 GiB", Score: 0.41,
		Parts:  []web.ScorePart{{Name: "free", Value: 0.63, Note: "of what it asks for would still be free"}, {Name: "weight", Value: 0.8}, {Name: "health", Value: 0.72}, {Name: "tags", Value: 1.13, Note: "shares gpu"}},
		Others: []web.PlacementRow{{Cluster: "gpu-west", Score: 0.33, Parts: "free 0.33 × weight 1.00 × health 1.00", Reason: "a lower score"}, {Cluster: "gpu-east", Reason: "unhealthy: it did not answer within 2 s"}, {Cluster: "cpu_cluster", Reason: "too small: 4 gpu are missing"}},
		Not:    []web.Label{{Key: "too small", Value: "11"}, {Key: "held", Value: "1"}}}
	run.JobRow.Why = "best of 2 with room, score 0.41"
	run.Now = web.Note{Title: web.Say("Runs for 13 min."), Text: web.Say("When it ends, its exit code and the end of its log are kept here.")}
	run.Env = "{\n  \"env_vars\": {\n    \"WANDB_API_KEY\": \"" + web.Masked + "\"\n  },\n  \"working_dir\": \"gcs://_ray_pkg_7b0e12d5a2.zip\"\n}"
	run.Merged, run.Hidden = "{\n  \"env_vars\": {\n    \"HF_TOKEN\": \""+web.Masked+"\",\n    \"WANDB_API_KEY\": \""+web.Masked+"\"\n  },\n  \"pip\": [\n    \"torch\"\n  ],\n  \"working_dir\": \"gcs://_ray_pkg_7b0e12d5a2.zip\"\n}", 2
	run.Metadata, run.Retries, run.RetryOn, run.Preferred = []web.Label{{Key: "project", Value: "ml_training"}, {Key: "user", Value: "alice"}}, 2, []string{"cluster_lost", "node_lost"}, "gpu-east"
	run.Notes = []string{"gpu-east, which you preferred, is unhealthy; the job went elsewhere."}
	run.Tried = []web.TriedCluster{{Cluster: "gpu-west", Why: "it refused: 500 Internal Server Error: runtime_env agent is not ready", At: at(13*time.Minute + 52*time.Second)}}
	run.Timeline = []web.Step{
		{At: at(13 * time.Minute), Tone: "ok", Title: web.Line{web.Strong("Running")}, Took: -1},
		{At: at(13*time.Minute + 50*time.Second), Title: web.Line{web.Strong("Accepted"), web.Text(" by Ray, pending")}, Detail: web.Say("the runtime environment is set up"), Took: 50 * time.Second},
		{At: at(13*time.Minute + 51*time.Second), Title: web.Line{web.Strong("Placed"), web.Text(" on "), web.Link("gpu_cluster", "/clusters/gpu_cluster")}, Detail: web.Say("best of 2 with room, score 0.41"), Took: 18 * ms},
		{At: at(13*time.Minute + 52*time.Second), Tone: "warn", Title: web.Line{web.Strong("Not taken"), web.Text(" by "), web.Link("gpu-west", "/clusters/gpu-west")}, Detail: web.Say("500 Internal Server Error: runtime_env agent is not ready"), Took: 620 * ms},
		{At: at(14 * time.Minute), Title: web.Line{web.Strong("Queued"), web.Text(", submitted by mei")}, Took: 8 * time.Second},
	}

	wait := job("sub_eval_70b", "QUEUED", "", "python /srv/eval/mmlu.py --model /ckpt/llama-70b", at(6*time.Minute), "eval", "gpu")
	wait.Request, wait.Position, wait.Timeout = web.Resources{"gpu": 8000, "cpu": 32000}, 1, 30*time.Minute
	wait.Reason = "nobody has room for 8 gpu now"
	wait.Now = web.Note{Kind: "warn", Title: web.Say("Waits, first in line: nobody has room for 8 gpu · 32 cpu."), Text: web.Line{web.Text("The largest free is 5 gpu on "), web.Link("gpu_cluster", "/clusters/gpu_cluster"), web.Text(". It fails if it still waits in 24 min.")}}
	wait.Why = &web.JobPlacement{Reason: "nobody has room now; gpu_cluster and gpu-east are large enough", Others: []web.PlacementRow{{Cluster: "gpu_cluster", Reason: "no room: 3 gpu are missing"}, {Cluster: "gpu-east", Reason: "unhealthy: it did not answer within 2 s"}}}
	wait.Timeline = []web.Step{{At: at(6 * time.Minute), Title: web.Line{web.Strong("Queued"), web.Text(", submitted by mei")}, Took: -1}}

	lost := job("sub_sweep_lr_03", "UNKNOWN", "gpu-east", "python /srv/sweep.py --lr 0.003", at(55*time.Minute), "sweep")
	lost.Started, lost.Accepted = at(54*time.Minute), at(54*time.Minute)
	lost.Reason = "gpu-east does not answer"
	lost.Now = web.Note{Kind: "warn", Title: web.Say("Its cluster is silent, so nobody knows how it is."), Text: web.Line{web.Link("gpu-east", "/clusters/gpu-east"), web.Text(" last answered 42 s ago. After 60 s the job counts as lost, and fails: it has no retries.")}}

	fail := job("sub_tok_9", "FAILED", "cpu_cluster", "python /srv/tokenize.py --vocab /data/vocab.json", at(3*time.Hour), "batch")
	code := 1
	fail.Started, fail.Ended, fail.Accepted, fail.ExitCode, fail.ErrorType = at(3*time.Hour-2*time.Second), at(175*time.Minute), at(3*time.Hour-time.Second), &code, "JOB_ENTRYPOINT_COMMAND_ERROR"
	fail.Reason = "its command ended with exit code 1"
	fail.Message = "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\nValueError: vocab.json has 50,257 entries, the model 50,304"
	fail.Now = web.Note{Kind: "bad", Title: web.Say("Failed: its command ended with exit code 1."), Text: web.Line{web.Code("ValueError: vocab.json has 50,257 entries, the model 50,304"), web.Text(" The end of its log is below.")}}
	fail.Timeline = []web.Step{{At: fail.Ended, Tone: "bad", Title: web.Line{web.Strong("Failed")}, Detail: web.Say("exit code 1")}, {At: fail.Started, Tone: "ok", Title: web.Line{web.Strong("Running")}, Took: 5 * time.Minute}}
	again := web.NewJobForm()
	again.Entrypoint, again.CPU = fail.Entrypoint, "2"
	fail.Again = &again

	w.jobs = []web.Job{wait, run, lost, fail}
	for i := range 70 {
		id := fmt.Sprintf("sub_shard_%03d", i)
		switch {
		case i < 3:
			j := job(id, "PENDING", "gpu_cluster", fmt.Sprintf("python /srv/shard.py --n %d", i), at(time.Duration(20+i)*time.Minute), "shards")
			j.Accepted = j.Created.Add(time.Second)
			w.jobs = append(w.jobs, j)
		case i < 12:
			j := job(id, "RUNNING", "cpu_cluster", fmt.Sprintf("python /srv/shard.py --n %d", i), at(time.Duration(20+i)*time.Minute), "shards", "cpu")
			j.Accepted, j.Started = j.Created.Add(time.Second), j.Created.Add(3*time.Second)
			j.JobRow.Why = "most free of 3, score 0.88"
			w.jobs = append(w.jobs, j)
		default:
			j := job(id, []string{"SUCCEEDED", "SUCCEEDED", "STOPPED"}[i%3], "cpu_cluster", fmt.Sprintf("python /srv/shard.py --n %d", i), at(time.Duration(20+i)*time.Minute), "shards")
			j.Accepted, j.Started, j.Ended = j.Created.Add(time.Second), j.Created.Add(3*time.Second), j.Created.Add(time.Duration(i)*time.Minute)
			w.jobs = append(w.jobs, j)
		}
	}
}

func (w *World) Jobs(_ context.Context, f web.JobFilter) (web.JobList, error) {
	defer w.lock()()
	l := web.JobList{Count: web.JobCounts{}}
	for _, c := range w.clusters {
		l.Clusters = append(l.Clusters, c.Name)
		if f.Outside && (f.Cluster == "" || f.Cluster == c.Name) {
			l.Outside = append(l.Outside, c.Outside...)
		}
	}
	for _, j := range w.jobs {
		if f.Cluster != "" && j.Cluster != f.Cluster || f.Tag != "" && !slices.Contains(j.Tags, f.Tag) || f.JobID != "" && j.JobID != f.JobID || !strings.Contains(j.ID+" "+j.JobID+" "+j.Entrypoint, f.Text) {
			continue
		}
		l.Count[j.State]++
		if f.State == "all" || f.State == j.State || f.State == "live" && j.Live() {
			l.Items = append(l.Items, j.JobRow)
		}
	}
	l.Total = len(l.Items)
	l.Items, l.Next = part(l.Items, f.Cursor, f.Limit)
	return l, w.Fail
}

func (w *World) jobAt(id string) int {
	return slices.IndexFunc(w.jobs, func(j web.Job) bool { return j.ID == id })
}

func (w *World) Job(_ context.Context, id string) (web.Job, error) {
	defer w.lock()()
	i := w.jobAt(id)
	if i < 0 {
		return web.Job{}, missing("job", id)
	}
	return w.jobs[i], w.Fail
}

func (w *World) JobLog(_ context.Context, id string, offset int64, limit int) (web.JobLog, error) {
	defer w.lock()()
	i := w.jobAt(id)
	if i < 0 {
		return web.JobLog{}, missing("job", id)
	}
	j, text := w.jobs[i], ""
	if j.State == "UNKNOWN" {
		return web.JobLog{Problem: "gpu-east does not answer, so its log cannot be read now."}, w.Fail
	}
	if !j.Started.IsZero() {
		var b strings.Builder
		for n := range 400 {
			fmt.Fprintf(&b, "2026-11-21 13:%02d:%02d epoch %3d loss %.4f <b>&amp;\n", 31+n/60, n%60, n, 2.31-float64(n)/900)
		}
		text = b.String()
	}
	if offset < 0 {
		offset = int64(max(0, len(text)-limit))
	}
	offset = min(offset, int64(len(text)))
	end := min(int64(len(text)), offset+int64(limit))
	return web.JobLog{LogChunk: web.LogChunk{Text: text[offset:end], Offset: offset, Next: end, EOF: end == int64(len(text)), Ended: !j.Live()}}, w.Fail
}

func (w *World) SubmitJob(_ context.Context, n web.NewJob) (string, error) {
	defer w.lock()()
	if err := w.note("submit job %s %q: %s, %s, priority %v, prefers %s, metadata %v, tags %v", n.SubmissionID, n.Entrypoint, n.Request, n.Reserve, n.Priority, n.Preferred, n.Metadata, n.Tags); err != nil {
		return "", err
	}
	if strings.HasPrefix(n.Entrypoint, "python ./") {
		return "", &pages.Refusal{ErrorCode: "invalid", Message: "invalid", ByField: map[string]string{"entrypoint": "./train.py is a relative path; write the whole one."}}
	}
	if n.SubmissionID == "" {
		n.SubmissionID = "sub_made"
	}
	j := job(n.SubmissionID, "QUEUED", "", n.Entrypoint, w.now, n.Tags...)
	j.Position, j.Request = 2, n.Request
	w.jobs = append([]web.Job{j}, w.jobs...)
	w.tell(pages.Jobs)
	return j.ID, nil
}

func (w *World) StopJob(_ context.Context, id string) error {
	defer w.lock()()
	if err := w.note("stop %s", id); err != nil {
		return err
	}
	i := w.jobAt(id)
	if i < 0 {
		return missing("job", id)
	}
	if !w.jobs[i].Live() {
		return &pages.Refusal{ErrorCode: "wrong_state", Message: fmt.Sprintf("%s is %s already.", id, strings.ToLower(w.jobs[i].State))}
	}
	w.jobs[i].Stopping = true
	w.tell(pages.Jobs)
	return nil
}
