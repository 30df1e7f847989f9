package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schedulemesh/schedulemesh/clusters"
	"github.com/schedulemesh/schedulemesh/clusters/clustertest"
	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func TestAJobFromItsSubmissionToItsEnd(t *testing.T) {
	t.Parallel()
	r := open(t)
	c := r.cluster("a", clustertest.Options{CPUs: 4, Memory: 8 << 30})
	j := r.submit(Spec{SubmissionID: "one", JobID: "j", Requirements: sched.Resources{CPU: 1500, Memory: 1024}, Metadata: map[string]string{"user": "alice"}, Tags: []string{"x"}, SubmittedBy: "me"})
	if j.State != Queued || j.Attempt != 1 {
		t.Errorf("%+v", j)
	}
	j = r.becomes("one", Running, on("a"))
	got := c.Accepted()
	if len(got) != 1 || got[0].SubmissionID != "one" || *got[0].NumCPUs != 1.5 || *got[0].Memory != 1<<30 || got[0].NumGPUs != nil || got[0].Metadata["user"] != "alice" {
		t.Errorf("Ray was told %+v", got)
	}
	if j.Placement == nil || j.Placement.Cluster != "a" || j.AcceptedAt == nil || j.StartedAt == nil || j.EndedAt != nil {
		t.Errorf("%+v", j)
	}
	c.Print("one", "hello\nworld\n")
	c.End("one", clusters.RaySucceeded)
	j = r.becomes("one", Succeeded)
	if j.EndedAt == nil || j.EndedAt.Before(*j.StartedAt) {
		t.Errorf("%+v", j)
	}
	if got := r.kinds("one"); !slices.Equal(got, []string{"queued", "placed", "pending", "running", "succeeded"}) {
		t.Errorf("%v", got)
	}
	log, err := r.Logs(t.Context(), "one", 0, 1<<20)
	if err != nil || !strings.HasSuffix(log.Text, "\nhello\nworld\n") || !log.Ended || log.Kept {
		t.Errorf("%+v %v", log, err)
	}
	r.eventually("its end is kept", func() bool { j, _ := r.Job(t.Context(), "one"); return j.LogTail != "" })
	c.Down()
	log, err = r.Logs(t.Context(), "one", 0, 1<<20)
	if err != nil || !strings.HasSuffix(log.Text, "\nhello\nworld\n") || !log.Kept {
		t.Errorf("%+v %v", log, err)
	}
}

func TestTheSameSubmissionIsTheSameJob(t *testing.T) {
	t.Parallel()
	r := open(t)
	c := r.cluster("a", clustertest.Options{})
	spec := Spec{Entrypoint: "python /a/x.py", SubmissionID: "same", JobID: "j"}
	var wg sync.WaitGroup
	made := make([]bool, 20)
	for i := range made {
		wg.Go(func() {
			_, created, err := r.Submit(t.Context(), spec)
			made[i] = created
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(slices.DeleteFunc(made, func(b bool) bool { return !b })); n != 1 {
		t.Errorf("made %d times", n)
	}
	r.becomes("same", Running)
	if got := ids(c); len(got) != 1 {
		t.Errorf("%v", got)
	}
	spec.Entrypoint = "python /a/y.py"
	if _, _, err := r.Submit(t.Context(), spec); !errors.Is(err, ErrJobExists) {
		t.Error(err)
	}
	// job_id need not be unique.
	r.submit(Spec{JobID: "j"})
}

func TestWhoWaitsGoesByPriorityAndAge(t *testing.T) {
	t.Parallel()
	r := open(t)
	c := r.cluster("a", clustertest.Options{CPUs: 1})
	r.submit(Spec{SubmissionID: "first", Requirements: cpus(1)})
	r.becomes("first", Running)
	for _, x := range []struct {
		id       string
		priority sched.Milli
	}{{"low", 1000}, {"high", 9000}, {"high2", 9000}} {
		r.submit(Spec{SubmissionID: x.id, Requirements: cpus(1), Priority: x.priority})
		j := r.becomes(x.id, Queued, code("waits"))
		if !strings.Contains(j.Reason, "a has no room") && !strings.Contains(j.Reason, "is kept") || j.Placement == nil {
			t.Errorf("%s: %s", x.id, j.Reason)
		}
	}
	for id, at := range map[string]int{"high": 1, "high2": 2, "low": 3} {
		if j, _ := r.Job(t.Context(), id); j.QueuePosition != at {
			t.Errorf("%s stands at %d", id, j.QueuePosition)
		}
	}
	if p, err := r.Find(t.Context(), Filter{States: []string{Queued}, Limit: 9}); err != nil || len(p.Items) != 3 || p.Items[2].SubmissionID != "low" || p.Items[2].QueuePosition != 3 {
		t.Errorf("%+v %v", p.Items, err)
	}
	for _, id := range []string{"high", "high2", "low"} {
		c.End(ids(c)[len(ids(c))-1], clusters.RaySucceeded)
		r.becomes(id, Running)
	}
	if got := ids(c); !slices.Equal(got, []string{"first", "high", "high2", "low"}) {
		t.Errorf("%v", got)
	}
}

func TestWhatCannotBeIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	r := open(t)
	if _, _, err := r.Submit(t.Context(), Spec{Entrypoint: "python /a/x.py"}); !errors.Is(err, ErrNoClusters) {
		t.Error(err)
	}
	r.cluster("a", clustertest.Options{CPUs: 4, Nodes: 2})
	var refused *ledger.Error
	if _, _, err := r.Submit(t.Context(), Spec{Entrypoint: "python /a/x.py", Requirements: cpus(1000)}); !errors.As(err, &refused) || refused.Code != ErrImpossible.Code || refused.Detail == nil {
		t.Errorf("%v", err)
	} else if p := refused.Detail.(Placement); len(p.Others) != 1 || p.Others[0].Code != notLarge {
		t.Errorf("%+v", p)
	}
	if _, _, err := r.Submit(t.Context(), Spec{Entrypoint: "python /a/x.py", Requirements: cpus(6)}); !errors.Is(err, ErrImpossible) {
		t.Errorf("%v", err) // two machines of 4
	}
	r.submit(Spec{SubmissionID: "spread", Requirements: cpus(6), Reserve: ReserveNone})
	r.becomes("spread", Running)
	for field, s := range map[string]Spec{"entrypoint": {Entrypoint: "python x.py"}, "max_retries": {Entrypoint: "ls", MaxRetries: -1}, "retry_on": {Entrypoint: "ls", RetryOn: []string{"x"}}, "reserve": {Entrypoint: "ls", Reserve: "x"}} {
		if _, _, err := r.Submit(t.Context(), s); !errors.As(err, &refused) || refused.Fields[field] == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := r.Job(t.Context(), "nobody"); !errors.Is(err, ErrUnknownJob) {
		t.Error(err)
	}
}

func TestAnUnknownPreferredClusterIsNoObstacle(t *testing.T) {
	t.Parallel()
	r := open(t)
	r.cluster("a", clustertest.Options{})
	j := r.submit(Spec{SubmissionID: "x", PreferredCluster: "nowhere"})
	if len(j.Notes) != 1 || !strings.Contains(j.Notes[0], `"nowhere"`) {
		t.Errorf("%v", j.Notes)
	}
	if j = r.becomes("x", Running, on("a")); len(j.Notes) != 1 {
		t.Errorf("%v", j.Notes)
	}
}

func TestQueueTimeout(t *testing.T) {
	t.Parallel()
	r := open(t)
	r.cluster("a", clustertest.Options{CPUs: 1})
	r.submit(Spec{SubmissionID: "first", Requirements: cpus(1)})
	r.becomes("first", Running)
	r.submit(Spec{SubmissionID: "late", Requirements: cpus(1), QueueTimeout: 300 * time.Millisecond})
	j := r.becomes("late", Failed, code("queue_timeout"))
	if !strings.Contains(j.Reason, "waited for 300ms") || !strings.Contains(j.Reason, "a has no room") {
		t.Error(j.Reason)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	r := open(t)
	c := r.cluster("a", clustertest.Options{CPUs: 1, StopTakes: 100 * time.Millisecond})
	r.submit(Spec{SubmissionID: "runs", Requirements: cpus(1)})
	r.becomes("runs", Running)
	r.submit(Spec{SubmissionID: "waits", Requirements: cpus(1)})
	if j, err := r.Stop(t.Context(), "waits", "alice"); err != nil || j.StopRequestedBy != "alice" {
		t.Errorf("%+v %v", j, err)
	}
	r.becomes("waits", Stopped)
	if _, err := r.Stop(t.Context(), "runs", "bob"); err != nil {
		t.Error(err)
	}
	j := r.becomes("runs", Stopped, code("stop_requested"))
	if j.StopRequestedBy != "bob" {
		t.Errorf("%+v", j)
	}
	if j, err := r.Stop(t.Context(), "runs", "eve"); err != nil || j.State != Stopped || j.StopRequestedBy != "bob" {
		t.Errorf("%+v %v", j, err)
	}
	if _, err := r.Stop(t.Context(), "nobody", "eve"); !errors.Is(err, ErrUnknownJob) {
		t.Error(err)
	}
	if got := ids(c); len(got) != 1 {
		t.Errorf("%v", got)
	}
	r.submit(Spec{SubmissionID: "outside"})
	r.becomes("outside", Running)
	c.End("outside", clusters.RayStopped)
	r.becomes("outside", Stopped, code("stopped_outside"))
}

func TestFailuresSayWhy(t *testing.T) {
	t.Parallel()
	r := open(t)
	c := r.cluster("a", clustertest.Options{Fate: func(s clusters.Submission) clustertest.Fate {
		return clustertest.Fate{After: 50 * time.Millisecond, Status: clusters.RayFailed, Prints: "Traceback\x00 \xff\nValueError: no\n"}
	}})
	r.submit(Spec{SubmissionID: "bad", MaxRetries: 3})
	j := r.becomes("bad", Failed)
	if j.Attempt != 1 || j.Reason == "" || j.Code == "" {
		t.Errorf("%+v", j)
	}
	r.eventually("the end of its log is kept", func() bool { j, _ := r.Job(t.Context(), "bad"); return strings.Contains(j.LogTail, "ValueError") })
	_ = c
}

// However the cluster behaves while a job is submitted, it runs exactly once.
func TestASubmissionArrivesOnceWhateverHappens(t *testing.T) {
	t.Parallel()
	post := func(k clustertest.Kind, times int) clustertest.Fault {
		return clustertest.Fault{Kind: k, Method: "POST", Path: "/api/jobs/", Exact: true, Times: times}
	}
	get := func(k clustertest.Kind, times int) clustertest.Fault {
		return clustertest.Fault{Kind: k, Method: "GET", Path: "/api/jobs/sub", Times: times}
	}
	refuses := post(clustertest.Fail, 0)
	bad := post(clustertest.Fail, 0)
	bad.Status, bad.Body = 400, "no such conda"
	for name, x := range map[string]struct {
		faults []clustertest.Fault
		want   string // where it runs
	}{
		"accepted, and the answer is cut off":    {[]clustertest.Fault{post(clustertest.AcceptThenCut, 1)}, "a"},
		"accepted, and the answer is a 500":      {[]clustertest.Fault{post(clustertest.AcceptThen500, 1)}, "a"},
		"accepted, and no answer":                {[]clustertest.Fault{post(clustertest.AcceptThenHang, 1)}, "a"},
		"accepted, and half an answer":           {[]clustertest.Fault{post(clustertest.CutHalfway, 1)}, "a"},
		"accepted, and asking fails for a while": {[]clustertest.Fault{post(clustertest.AcceptThenCut, 1), get(clustertest.Fail, 3)}, "a"},
		"cut off before":                         {[]clustertest.Fault{post(clustertest.CutBefore, 1)}, "a"},
		"no answer, and nothing done":            {[]clustertest.Fault{post(clustertest.Hang, 1)}, "a"},
		"cut off before, again and again":        {[]clustertest.Fault{post(clustertest.CutBefore, 0)}, "b"},
		"an answer of somebody else's":           {[]clustertest.Fault{post(clustertest.Garbage, 0)}, "b"},
		"500":                                    {[]clustertest.Fault{refuses}, "b"},
		"400":                                    {[]clustertest.Fault{bad}, "b"},
		"slow":                                   {[]clustertest.Fault{{Kind: clustertest.Slow, Method: "POST", Delay: 500 * time.Millisecond}}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t)
			a := r.cluster("a", clustertest.Options{CPUs: 8})
			b := r.cluster("b", clustertest.Options{CPUs: 4})
			for _, f := range x.faults {
				a.Break(f)
			}
			r.submit(Spec{SubmissionID: "sub", Requirements: cpus(1), PreferredCluster: "a"})
			r.becomes("sub", Running, on(x.want))
			time.Sleep(200 * time.Millisecond)
			total := append(ids(a), ids(b)...)
			if !slices.Equal(total, []string{"sub"}) {
				t.Errorf("accepted: %v\n%s", total, r.story("sub"))
			}
		})
	}
}

// A cluster goes deaf while some are being sent: those of which nothing was sent go elsewhere at once.
func TestWhoWaitsToBeSentToADeafClusterGoesElsewhere(t *testing.T) {
	t.Parallel()
	r := open(t, func(o *Options) { o.LostAfter = time.Minute })
	a, b := r.cluster("a", clustertest.Options{CPUs: 100}), r.cluster("b", clustertest.Options{CPUs: 50})
	a.Break(clustertest.Fault{Kind: clustertest.Hang})
	for i := range sendAtOnce + 5 {
		r.submit(Spec{SubmissionID: fmt.Sprint("j", i), Requirements: cpus(1), PreferredCluster: "a"})
	}
	r.eventually("what was not sent is on b", func() bool { return len(ids(b)) >= 5 })
	if got := ids(a); len(got) != 0 {
		t.Error(got)
	}
}

func TestAJobThatNobodyTakesFailsWithWhatEachSaid(t *testing.T) {
	t.Parallel()
	r := open(t)
	for _, name := range []string{"a", "b"} {
		r.cluster(name, clustertest.Options{}).Break(clustertest.Fault{Kind: clustertest.Fail, Method: "POST", Path: "/api/jobs/", Status: 400, Body: "no such thing as " + name})
	}
	r.submit(Spec{SubmissionID: "x"})
	j := r.becomes("x", Failed, code("submission_refused"))
	if !strings.Contains(j.Reason, "no such thing as a") || !strings.Contains(j.Reason, "no such thing as b") || len(j.Tried) != 2 {
		t.Errorf("%s %+v", j.Reason, j.Tried)
	}
}

func TestAnIDThatIsTakenInRayByAnother(t *testing.T) {
	t.Parallel()
	r := open(t)
	a, b := r.cluster("a", clustertest.Options{CPUs: 8}), r.cluster("b", clustertest.Options{})
	a.Start(clusters.Submission{Entrypoint: "python /other.py", SubmissionID: "x"})
	r.submit(Spec{SubmissionID: "x", PreferredCluster: "a"})
	r.becomes("x", Running, on("b"))
	if len(ids(b)) != 1 {
		t.Error(ids(b))
	}
}

func TestAClusterThatIsAwayForAMoment(t *testing.T) {
	t.Parallel()
	r := open(t, func(o *Options) { o.LostAfter = 30 * time.Second })
	a := r.cluster("a", clustertest.Options{})
	r.submit(Spec{SubmissionID: "x", MaxRetries: 5})
	r.becomes("x", Running)
	a.Down()
	j := r.becomes("x", Unknown, code("cluster_silent"))
	if !strings.Contains(j.Reason, "does not answer") {
		t.Error(j.Reason)
	}
	a.Up()
	r.becomes("x", Running)
	a.Down()
	r.becomes("x", Unknown)
	a.End("x", clusters.RaySucceeded)
	a.Up()
	r.becomes("x", Succeeded)
}

func TestAClusterThatIsLost(t *testing.T) {
	t.Parallel()
	r := open(t)
	a, b := r.cluster("a", clustertest.Options{CPUs: 8}), r.cluster("b", clustertest.Options{CPUs: 2})
	r.submit(Spec{SubmissionID: "again", Requirements: cpus(1), PreferredCluster: "a", MaxRetries: 1})
	r.submit(Spec{SubmissionID: "once", Requirements: cpus(1), PreferredCluster: "a"})
	r.submit(Spec{SubmissionID: "stopped", Requirements: cpus(1), PreferredCluster: "a"})
	for _, id := range []string{"again", "once", "stopped"} {
		r.becomes(id, Running, on("a"))
	}
	a.Down()
	r.becomes("stopped", Unknown)
	if _, err := r.Stop(t.Context(), "stopped", "me"); err != nil {
		t.Error(err)
	}
	j := r.becomes("again", Running, on("b"))
	if j.Attempt != 2 || j.RayID != "again-2" || !slices.Equal(ids(b), []string{"again-2"}) {
		t.Errorf("%+v", j)
	}
	r.becomes("once", Failed, code(ClusterLost))
	r.becomes("stopped", Stopped, code(ClusterLost))

	// It was only out of reach: nothing may run twice, and what was not replaced is what it is.
	a.Up()
	r.becomes("once", Running, on("a"))
	r.eventually("what runs elsewhere by now is stopped", func() bool { return slices.Equal(a.Live(), []string{"once"}) })
	r.becomes("again", Running, on("b"))
	if !slices.Contains(r.kinds("again"), "stray_stopped") || !slices.Contains(r.kinds("once"), "found_again") {
		t.Errorf("%s\n\n%s", r.story("again"), r.story("once"))
	}
	a.End("once", clusters.RaySucceeded)
	r.becomes("once", Succeeded)
}

func TestAHeadThatWasStartedAnewKnowsNothing(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{})
	r.submit(Spec{SubmissionID: "again", MaxRetries: 1, RetryOn: []string{ClusterLost}})
	r.submit(Spec{SubmissionID: "other", MaxRetries: 1, RetryOn: []string{NodeLost}})
	r.becomes("again", Running)
	r.becomes("other", Running)
	a.NewSession()
	j := r.becomes("again", Running, func(j Job) bool { return j.Attempt == 2 })
	if j.Session != a.Session() {
		t.Errorf("%s %s", j.Session, a.Session())
	}
	r.becomes("other", Failed, code(ClusterLost))
}

// The head may be started anew between the last probe and a submission: what it has is not lost.
func TestAJobThatTheNewHeadHasIsNotLost(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{})
	j := r.submit(Spec{SubmissionID: "x", MaxRetries: 3})
	r.becomes("x", Running)
	e := r.engine.Load()
	session := func(set string) string {
		e.mu.Lock()
		defer e.mu.Unlock()
		if set != "" {
			e.jobs[j.UID].Session = set
		}
		return e.jobs[j.UID].Session
	}
	session("of before")
	r.eventually("the session is put right", func() bool { return session("") == a.Session() })
	if got := r.kinds("x"); !slices.Equal(got, []string{"queued", "placed", "pending", "running"}) {
		t.Errorf("%v", got)
	}
}

func TestANodeThatIsLost(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{CPUs: 2, Nodes: 2})
	r.submit(Spec{SubmissionID: "again", MaxRetries: 1, Requirements: cpus(2)})
	r.becomes("again", Running)
	info, _ := a.Job("again")
	nodes := r.fleet.All()[0].Status.Nodes
	a.KillNode(slices.IndexFunc(nodes, func(n clusters.Node) bool { return n.ID == info.NodeID }))
	j := r.becomes("again", Running, func(j Job) bool { return j.Attempt == 2 })
	if !slices.Contains(r.kinds("again"), "retry") || j.RayID != "again-2" {
		t.Error(r.story("again"))
	}
}

// The server that moves jobs goes while a submission is on its way: the next one asks first.
func TestTheNextServerGoesOnWhereTheLastOneStopped(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]clustertest.Kind{"arrived": clustertest.AcceptThenHang, "not arrived": clustertest.Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t)
			a := r.cluster("a", clustertest.Options{CPUs: 2})
			r.submit(Spec{SubmissionID: "runs"})
			r.becomes("runs", Running)
			a.Break(clustertest.Fault{Kind: kind, Method: "POST", Path: "/api/jobs/", Exact: true, Times: 1})
			r.submit(Spec{SubmissionID: "sub", Requirements: cpus(1)})
			r.submit(Spec{SubmissionID: "waits", Requirements: cpus(2)})
			r.becomes("sub", Submitting)
			r.eventually("it is on its way", func() bool { return a.Calls("POST /api/jobs/") >= 2 })
			r.lease.give("second")
			second := r.begin("second")
			r.stop()
			second.becomes("sub", Running)
			a.End("runs", clusters.RaySucceeded)
			second.becomes("runs", Succeeded)
			a.End("sub", clusters.RaySucceeded)
			second.becomes("sub", Succeeded)
			second.becomes("waits", Running)
			if got := ids(a); !slices.Equal(got, []string{"runs", "sub", "waits"}) {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestAnyServerTakesStopsAndWaits(t *testing.T) {
	t.Parallel()
	r := open(t)
	r.cluster("a", clustertest.Options{})
	other := r.begin("other")
	other.submit(Spec{SubmissionID: "x"})
	began := time.Now()
	other.becomes("x", Running)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := other.Stop(t.Context(), "x", "me"); err != nil {
		t.Error(err)
	}
	other.becomes("x", Stopped)
}

func TestWhatOthersRunIsShown(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{})
	a.Start(clusters.Submission{Entrypoint: "python /theirs.py", SubmissionID: "theirs", Metadata: map[string]string{"who": "they"}})
	a.Driver("01000000", "python -m schedulemesh.bridge --x")
	a.Driver("02000000", "python /notebook.py")
	r.submit(Spec{SubmissionID: "ours"})
	r.eventually("theirs are listed", func() bool {
		list, err := r.Outside(t.Context(), "a", 10)
		return err == nil && len(list) == 2
	})
	list, _ := r.Outside(t.Context(), "", 10)
	for _, o := range list {
		if o.RayID != "theirs" && o.RayID != "02000000" {
			t.Errorf("%+v", o)
		}
	}
}

func TestManyJobsOverManyClustersStayWithinRoom(t *testing.T) {
	t.Parallel()
	r := open(t)
	var all []*clustertest.Cluster
	for i := range 5 {
		all = append(all, r.cluster(fmt.Sprint("c", i), clustertest.Options{CPUs: 4, Run: 150 * time.Millisecond}))
	}
	const n = 200
	done := make(chan struct{})
	over := 0.0
	go func() {
		defer close(done)
		for t.Context().Err() == nil && over == 0 {
			select {
			case <-done:
			case <-time.After(5 * time.Millisecond):
			}
			for _, c := range all {
				if live := len(c.Live()); live > 4 {
					over = float64(live)
				}
			}
			if len(slices.Concat(ids(all[0]), ids(all[1]), ids(all[2]), ids(all[3]), ids(all[4]))) >= n {
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { r.submit(Spec{SubmissionID: fmt.Sprint("j", i), Requirements: cpus(1)}) })
	}
	wg.Wait()
	for i := range n {
		r.becomes(fmt.Sprint("j", i), Succeeded)
	}
	<-done
	if over > 0 {
		t.Errorf("%v jobs of 1 CPU at once on 4", over)
	}
	var got []string
	for _, c := range all {
		got = append(got, ids(c)...)
	}
	slices.Sort(got)
	if len(got) != n || len(slices.Compact(got)) != n {
		t.Errorf("%d submissions for %d jobs", len(got), n)
	}
}

func TestALogIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	r := open(t)
	a := r.cluster("a", clustertest.Options{})
	r.submit(Spec{SubmissionID: "x"})
	var mu sync.Mutex
	var text strings.Builder
	end := make(chan error, 1)
	ended := false
	go func() {
		end <- r.Follow(t.Context(), "x", 0, func(l Log) error {
			mu.Lock()
			defer mu.Unlock()
			text.WriteString(l.Text)
			ended = l.Ended
			return nil
		})
	}()
	r.becomes("x", Running)
	for i := range 5 {
		a.Print("x", fmt.Sprintf("line %d\n", i))
		time.Sleep(30 * time.Millisecond)
	}
	a.End("x", clusters.RaySucceeded)
	select {
	case err := <-end:
		if err != nil || !ended || !strings.HasSuffix(text.String(), "\nline 0\nline 1\nline 2\nline 3\nline 4\n") {
			t.Errorf("%v %v %q", err, ended, text.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on for ever")
	}
}

func TestListsOfJobs(t *testing.T) {
	t.Parallel()
	r := open(t)
	r.cluster("a", clustertest.Options{})
	for i := range 5 {
		r.submit(Spec{SubmissionID: fmt.Sprint("j", i), JobID: "batch", Tags: []string{"t", fmt.Sprint("n", i)}, Metadata: map[string]string{"user": fmt.Sprint("u", i%2)}})
		r.becomes(fmt.Sprint("j", i), Running)
	}
	find := func(f Filter) (out []string) {
		t.Helper()
		f.Limit = 2
		for {
			p, err := r.Find(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range p.Items {
				out = append(out, j.SubmissionID)
			}
			if p.Next == "" {
				if p.Total != len(out) {
					t.Errorf("%+v: total %d of %d", f, p.Total, len(out))
				}
				return out
			}
			f.Cursor = p.Next
		}
	}
	for want, f := range map[string]Filter{
		"j4 j3 j2 j1 j0": {},
		"j2":             {Tags: []string{"t", "n2"}},
		"j3 j1":          {Metadata: map[string]string{"user": "u1"}},
		"j0":             {Text: "J0"},
		"":               {States: []string{Failed}},
	} {
		if got := strings.Join(find(f), " "); got != want {
			t.Errorf("%+v: %q, want %q", f, got, want)
		}
	}
	if _, err := r.Find(t.Context(), Filter{Limit: 1, Cursor: "x"}); !errors.Is(err, &ledger.Error{Code: "invalid"}) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes := r.Changes(ctx)
	r.submit(Spec{SubmissionID: "new"})
	select {
	case <-changes:
	case <-time.After(5 * time.Second):
		t.Error("no word of a new job")
	}
	cancel()
	live, err := r.Live(t.Context())
	if err != nil || live["a"][Running] < 5 {
		t.Errorf("%v %v", live, err)
	}
}
