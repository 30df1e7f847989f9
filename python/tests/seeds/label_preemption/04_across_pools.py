# 配置策略
scheduler.update_preemption_policy(
    label_preemption_rules={
        "tier": {"premium": ["standard"]},
    },
    label_priority_threshold=0.5,
    cross_pool_priority_threshold=10.0,  # 跨 pool 需要高优先级差
)

# Pool A 的 standard 任务
scheduler.register_running_task(
    task_id="standard-in-a",
    agent_name="agent-a",
    pool_name="pool-a",
    priority=5.0,
    labels={"tier": "standard"},
)

# Pool B 的 premium 任务（优先级差不足以跨 pool 抢占）
eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=7.0,  # 差值 2.0 < 10.0
    incoming_task_pool="pool-b",
    incoming_task_labels={"tier": "premium"},
)

# 由于 label 规则，仍然可以抢占！
assert eval_result["should_preempt"] is True
assert eval_result["candidates"][0]["reason"] == "label_based_preemption"
