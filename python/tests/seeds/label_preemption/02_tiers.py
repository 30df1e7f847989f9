# 配置 tier 抢占规则
scheduler.update_preemption_policy(
    label_preemption_rules={
        "tier": {
            "premium": ["standard", "batch"],
            "standard": ["batch"],
        }
    },
    label_priority_threshold=0.5,
)

# premium 任务可以抢占 standard 任务，即使优先级相同
scheduler.register_running_task(
    task_id="standard-job",
    agent_name="worker-1",
    pool_name="pool-a",
    priority=5.0,
    labels={"tier": "standard"},
)

eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=5.0,  # 优先级相同
    incoming_task_pool="pool-a",
    incoming_task_labels={"tier": "premium"},
)

assert eval_result["should_preempt"] is True  # 可以抢占
