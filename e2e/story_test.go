package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

const (
	trainingClass = "examples.training_agent:TrainingAgentActor"
	pretrainSteps = 900
	rlhfSteps     = 250
)

// The whole promise in one go, by hand in a browser: pretraining fills the pool; an
// RLHF task of equal priority takes its place by a label rule; when that has
// completed, pretraining goes on where it was, and ends as if nothing had happened.
func TestTheTrainingStoryInABrowser(t *testing.T) {
	s := startServer(t)
	b := openBrowser(t)

	b.open(s.base + "/sign-in?token=" + token)
	b.shows("pool") // nothing is there yet, and the page says what to do next

	b.open(s.base + "/pools/new")
	b.fill(map[string]string{"name": "p", "cpu": "2", "memory": "2048", "labels": "tier=premium"})
	b.press("Create the pool")
	b.shows("premium", "2 GiB")

	b.open(s.base + "/policy")
	b.fill(map[string]string{"rule_key": "training_stage", "rule_value": "rlhf", "rule_over": "pretraining"})
	b.press("Review and save as version 2")
	b.shows("Save as version 2?", "rlhf")
	b.fill(map[string]string{"comment": "RLHF goes before pretraining"})
	b.press("Save version 2")
	b.shows("version 2", "RLHF goes before pretraining")

	submit := func(id, stage string, steps int) {
		b.open(s.base + "/tasks/new")
		b.fill(map[string]string{"task_id": id, "pool": "p", "actor_class": trainingClass,
			"actor_kwargs": fmt.Sprintf(`{"steps": %d, "seed": 3}`, steps), "entry_method": "train", "entry_kwargs": fmt.Sprintf(`{"task_id": %q}`, id),
			"cpu": "2", "memory": "512", "labels": "training_stage=" + stage, "estimated_duration": "30 s", "on_preempted": "requeue", "runtime_env": workerEnv(t)})
		b.press("Submit")
		b.shows(id, "Timeline")
	}
	submit("pretrain", "pretraining", pretrainSteps)
	b.shows("Running on node") // live: the page is not loaded again

	submit("rlhf", "rlhf", rlhfSteps)
	b.shows("Running on node")
	b.open(s.base + "/tasks/pretrain")
	b.shows("queued", "Makes way", "rlhf", "label rule training_stage: rlhf ≻ pretraining", "Queued again", "The handover")
	b.picture("task")
	saved := s.task("pretrain")
	if saved.State != "queued" || saved.SavedState["step"] == nil || saved.Preemptions != 1 {
		t.Fatalf("pretrain is %+v", saved)
	}
	b.open(s.base + "/")
	b.shows("1 task runs, 1 waits", "label")
	b.picture("overview")
	b.open(s.base + "/preemptions")
	b.shows("pretrain", "rlhf", "label")
	b.picture("preemptions")

	b.open(s.base + "/tasks/pretrain") // and watch it come back
	b.shows("attempt 2", "Completed")
	s.becomes("pretrain", "completed")
	b.shows("completed") // live again
	b.picture("task-completed")

	done, rlhf := s.becomes("pretrain", "completed"), s.becomes("rlhf", "completed")
	if done.Attempt != 2 || rlhf.Attempt != 1 {
		t.Errorf("attempts: pretrain %d, rlhf %d", done.Attempt, rlhf.Attempt)
	}
	if done.Result["resumed_from"] != saved.SavedState["step"] {
		t.Errorf("saved at step %v, resumed from %v", saved.SavedState["step"], done.Result["resumed_from"])
	}
	// The pool is held for a while: nothing starts in it, and what-if says why.
	b.open(s.base + "/pools/p/hold")
	b.fill(map[string]string{"reason": "new disks"})
	b.press("Hold it")
	b.shows("Nothing starts here.", "new disks")
	submit("late", "rlhf", 20)
	b.shows("is held", "new disks")
	b.press("What if…")
	b.shows("Nothing is changed by asking", "It would not run.", "is held", "new disks")
	b.picture("what-if")
	b.open(s.base + "/what-if")
	b.fill(map[string]string{"draft": "label_preemption_rules: {}"})
	b.shows("What the draft changes", "label_preemption_rules.training_stage", "Tasks that wait", "late") // as one types
	b.press("Backtest the draft")
	b.shows("What was submitted is replayed twice", "Replay")
	b.press("Replay")
	b.shows("Waiting, by priority", "Preemptions", "pretrain", "once, by rlhf") // under the draft nobody takes its place
	b.picture("backtest")
	b.open(s.base + "/pools/p/resume")
	b.press("Resume it")
	b.shows("It starts tasks again.")
	s.becomes("late", "completed")
	b.open(s.base + "/nodes")
	b.shows("open", "Hold…")

	// An undisturbed training of the same seed ends with the same weights.
	var undisturbed struct {
		Accuracy    float64
		Fingerprint string
	}
	python := exec.Command(os.Getenv("SCHEDULEMESH_PYTHON"), "-c", fmt.Sprintf(`
import json
from examples.digits import DigitsTraining
training = DigitsTraining(3)
for _ in range(%d):
    training.train_step()
print(json.dumps({"accuracy": training.accuracy(), "fingerprint": training.fingerprint()}))`, pretrainSteps))
	python.Dir, python.Stderr = root(t), os.Stderr
	out, err := python.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &undisturbed); err != nil {
		t.Fatal(err)
	}
	if done.Result["fingerprint"] != undisturbed.Fingerprint || done.Result["accuracy"] != undisturbed.Accuracy {
		t.Errorf("it ended with %v, undisturbed it is %+v", done.Result, undisturbed)
	}

	var stats struct {
		Total int `json:"total_preemptions"`
		Label int `json:"label_preemptions"`
	}
	s.call("GET", "/api/v1/preemptions/stats", nil, &stats)
	if stats.Total != 1 || stats.Label != 1 {
		t.Errorf("stats %+v", stats)
	}
	var pool struct{ Available map[string]float64 }
	s.call("GET", "/api/v1/pools/p", nil, &pool)
	if pool.Available["cpu"] != 2 || pool.Available["memory"] != 2048 {
		t.Errorf("not all quota is back: %+v", pool)
	}
	s.verified()
	for _, c := range b.complaints {
		t.Error("the browser complains: " + c)
	}
}
