# 注册运行任务
scheduler.register_running_task(
    task_id="batch-job",
    agent_name="worker-1",
    pool_name="compute-pool",
    priority=5.0,
    labels={"tier": "batch"},  # batch 级别任务
)

# premium 任务到达（即使优先级相同，也可以抢占）
eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=5.0,  # 优先级相同
    incoming_task_pool="compute-pool",
    incoming_task_labels={"tier": "premium"},  # premium 级别
)

assert eval_result["should_preempt"] is True
assert eval_result["candidates"][0]["reason"] == "label_based_preemption"
