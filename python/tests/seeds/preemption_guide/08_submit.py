from examples.training_preemption_demo import TrainingAgentActor

result = scheduler.submit_task_with_preemption(
    task_id="critical-train-job",
    pool_name="pretrain-pool",
    resources={"cpu": 2.0, "memory": 4096.0},
    priority=8.0,
    labels={"training_stage": "rlhf"},
    actor_class=TrainingAgentActor,
    actor_kwargs={
        "supervisor": scheduler.supervisor_handle(),
        "report_interval": 1.0,
    },
)

if not result["success"]:
    raise RuntimeError(result["error"])
