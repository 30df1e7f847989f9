package clustertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/schedulemesh/schedulemesh/clusters"
)

// Ray's dashboard takes no larger bodies.
const maxBody = 100 << 20

func (c *Cluster) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/version", c.getVersion)
	mux.HandleFunc("GET /api/cluster_status", c.getUsage)
	mux.HandleFunc("GET /api/v0/nodes", c.getNodes)
	mux.HandleFunc("GET /api/jobs/{$}", c.getJobs)
	mux.HandleFunc("POST /api/jobs/{$}", c.postJob)
	mux.HandleFunc("GET /api/jobs/{id}", c.known(c.getJob))
	mux.HandleFunc("DELETE /api/jobs/{id}", c.known(c.deleteJob))
	mux.HandleFunc("POST /api/jobs/{id}/stop", c.known(c.stopJob))
	mux.HandleFunc("GET /api/jobs/{id}/logs", c.known(c.getLogs))
	mux.HandleFunc("GET /api/jobs/{id}/logs/tail", c.known(c.tailLogs))
	mux.HandleFunc("GET /api/v0/logs/file", c.getLogFile)
	mux.HandleFunc("GET /logs/{file}", c.agentLog)
	mux.HandleFunc("GET /api/packages/{protocol}/{name}", c.getPackage)
	mux.HandleFunc("PUT /api/packages/{protocol}/{name}", c.putPackage)
	return mux
}

func (c *Cluster) answer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	token := c.token
	c.mu.Unlock()
	switch got := r.Header.Get("Authorization"); {
	case token == "":
	case got == "":
		http.Error(w, "Unauthorized: Missing authentication token", http.StatusUnauthorized)
		return
	case got != "Bearer "+token:
		http.Error(w, "Forbidden: Invalid authentication token", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	c.mux.ServeHTTP(w, r)
}

func say(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v)
}

// object is any JSON object.
type object map[string]any

func (c *Cluster) getVersion(w http.ResponseWriter, _ *http.Request) {
	say(w, object{"version": "4", "ray_version": c.o.Version, "ray_commit": "0", "session_name": c.Session()})
}

func (c *Cluster) getUsage(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noUsage {
		say(w, object{"result": true, "msg": "Got cluster status.", "data": object{"autoscalingStatus": nil, "autoscalingError": nil, "clusterStatus": nil}})
		return
	}
	usage, byNode, types := map[string][2]float64{}, object{}, []any{}
	for _, n := range c.nodes {
		if !n.alive {
			continue
		}
		here, used := map[string][2]float64{}, n.used
		raw := c.rayTotal(n)
		for name, total := range raw {
			here[camel(name)] = [2]float64{used[name], total}
			sum := usage[camel(name)]
			usage[camel(name)] = [2]float64{sum[0] + used[name], sum[1] + total}
		}
		byNode[n.id] = here
		types = append(types, []any{raw, 1})
	}
	say(w, object{"result": true, "msg": "Got cluster status.", "data": object{"autoscalingStatus": "", "autoscalingError": nil, "clusterStatus": object{
		"time": float64(time.Now().UnixMilli()) / 1000, "loadMetricsReport": object{"usage": usage, "usageByNode": byNode, "nodeTypes": types, "resourceDemand": []any{}}}}})
}

// rayTotal is what Ray says a machine has: with its own bookkeeping.
func (c *Cluster) rayTotal(n *node) map[string]float64 {
	all := c.total()
	all["node:"+n.address] = 1
	all["object_store_memory"] = 78643200
	if n == c.nodes[0] {
		all["node:__internal_head__"] = 1
	}
	return all
}

// camel is what the dashboard makes of keys.
func camel(name string) string {
	first, rest, _ := strings.Cut(name, "_")
	for word := range strings.SplitSeq(rest, "_") {
		if word != "" {
			first += strings.ToUpper(word[:1]) + strings.ToLower(word[1:])
		}
	}
	return first
}

func (c *Cluster) getNodes(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []object{}
	for i, n := range c.nodes {
		one := object{"node_id": n.id, "node_ip": n.address, "is_head_node": i == 0, "state": "ALIVE", "state_message": nil, "resources_total": c.rayTotal(n), "end_time_ms": 0}
		if !n.alive {
			one["state"], one["end_time_ms"], one["resources_total"] = "DEAD", n.diedAt.UnixMilli(), object{}
		}
		list = append(list, one)
	}
	say(w, object{"result": true, "msg": "", "data": object{"result": object{"total": len(list), "result": list}}})
}

// shown is a job as Ray writes it.
func shown(j *job) object {
	ms := func(t *time.Time) any {
		if t == nil {
			return nil
		}
		return t.UnixMilli()
	}
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return object{
		"type": j.Type, "job_id": orNull(j.JobID), "submission_id": orNull(j.SubmissionID), "driver_info": nil, "status": j.Status, "entrypoint": j.Entrypoint,
		"message": orNull(j.Message), "error_type": orNull(j.ErrorType), "start_time": ms(j.Start), "end_time": ms(j.End), "metadata": j.Metadata, "runtime_env": j.RuntimeEnv,
		"driver_agent_http_address": orNull(j.AgentURL), "driver_node_id": orNull(j.NodeID), "driver_exit_code": j.ExitCode,
	}
}

func (c *Cluster) getJobs(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	list := make([]object, 0, len(c.order))
	for _, j := range c.order {
		list = append(list, shown(j))
	}
	c.mu.Unlock()
	say(w, list)
}

func (c *Cluster) postJob(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		http.Error(w, "Maximum request body size exceeded", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		return
	}
	var s clusters.Submission
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		http.Error(w, traceback("TypeError: JobSubmitRequest.__init__(): "+err.Error()), http.StatusBadRequest)
		return
	}
	if env := bytes.TrimSpace(s.RuntimeEnv); len(env) > 0 && env[0] != '{' && string(env) != "null" {
		http.Error(w, traceback("TypeError: runtime_env must be a dict"), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.SubmissionID == "" {
		s.SubmissionID = fmt.Sprintf("raysubmit_%016d", len(c.accepted))
	}
	if _, taken := c.jobs[s.SubmissionID]; taken {
		http.Error(w, traceback("RuntimeError: Request failed with status code 400: "+
			traceback("ValueError: Job with submission_id "+s.SubmissionID+" already exists. Please use a different submission_id.")+"."), http.StatusInternalServerError)
		return
	}
	c.submit(s)
	say(w, object{"job_id": s.SubmissionID, "submission_id": s.SubmissionID})
}

func traceback(last string) string {
	return "Traceback (most recent call last):\n  File \"ray/dashboard/modules/job/job_head.py\", line 1, in submit_job\n" + last + "\n"
}

func (c *Cluster) known(do func(w http.ResponseWriter, r *http.Request, j *job)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		j := c.jobs[r.PathValue("id")]
		c.mu.Unlock()
		if j == nil {
			http.Error(w, "Job "+r.PathValue("id")+" does not exist", http.StatusNotFound)
			return
		}
		do(w, r, j)
	}
}

func (c *Cluster) getJob(w http.ResponseWriter, _ *http.Request, j *job) {
	c.mu.Lock()
	o := shown(j)
	c.mu.Unlock()
	say(w, o)
}

func (c *Cluster) deleteJob(w http.ResponseWriter, _ *http.Request, j *job) {
	c.mu.Lock()
	over := j.over()
	c.mu.Unlock()
	if !over {
		http.Error(w, traceback("RuntimeError: Attempted to delete job '"+j.SubmissionID+"', but it is in a non-terminal state."), http.StatusInternalServerError)
		return
	}
	c.Forget(j.SubmissionID)
	say(w, object{"deleted": true})
}

func (c *Cluster) stopJob(w http.ResponseWriter, _ *http.Request, j *job) {
	if j.Type != clusters.RaySubmission {
		http.Error(w, "Can only stop submission type jobs", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	stopped := c.stop(j)
	c.mu.Unlock()
	say(w, object{"stopped": stopped})
}

// printed is what a job printed, and whether it is over.
func (c *Cluster) printed(j *job) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(j.log), j.over()
}

func (c *Cluster) getLogs(w http.ResponseWriter, _ *http.Request, j *job) {
	log, _ := c.printed(j)
	if string(bytes.ToValidUTF8(log, nil)) != string(log) {
		http.Error(w, traceback("UnicodeDecodeError: 'utf-8' codec can't decode byte"), http.StatusInternalServerError)
		return
	}
	say(w, object{"logs": string(log)})
}

func (c *Cluster) tailLogs(w http.ResponseWriter, r *http.Request, j *job) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	ctx := conn.CloseRead(r.Context())
	for sent := 0; ; {
		log, over := c.printed(j)
		if len(log) > sent {
			if conn.Write(ctx, websocket.MessageText, log[sent:]) != nil {
				return
			}
			sent = len(log)
			continue
		}
		if over {
			_ = conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *Cluster) logFile(name string) ([]byte, bool) {
	id, ok := strings.CutPrefix(strings.TrimSuffix(name, ".log"), "job-driver-")
	c.mu.Lock()
	j := c.jobs[id]
	c.mu.Unlock()
	if !ok || j == nil {
		return nil, false
	}
	log, _ := c.printed(j)
	return log, true
}

func (c *Cluster) getLogFile(w http.ResponseWriter, r *http.Request) {
	log, ok := c.logFile(r.URL.Query().Get("filename"))
	if !ok {
		http.Error(w, "A file is not found at: "+r.URL.Query().Get("filename"), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(log)
}

// agentLog is what the agent of a node serves.
func (c *Cluster) agentLog(w http.ResponseWriter, r *http.Request) {
	log, ok := c.logFile(r.PathValue("file"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(log))
}

func (c *Cluster) getPackage(w http.ResponseWriter, r *http.Request) {
	if _, ok := c.Package(r.PathValue("name")); !ok {
		http.Error(w, "Package "+r.PathValue("protocol")+"://"+r.PathValue("name")+" does not exist", http.StatusNotFound)
	}
}

func (c *Cluster) putPackage(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "Maximum request body size exceeded", http.StatusRequestEntityTooLarge)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packages[r.PathValue("name")] = data
}
