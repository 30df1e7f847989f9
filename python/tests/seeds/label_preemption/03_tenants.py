# 配置租户抢占规则
scheduler.update_preemption_policy(
    label_preemption_rules={
        "user_tier": {
            "admin": ["vip", "regular"],
            "vip": ["regular"],
        }
    },
)

# admin 用户可以抢占 regular 用户，即使优先级更低
scheduler.register_running_task(
    task_id="regular-task",
    agent_name="worker",
    pool_name="shared-pool",
    priority=10.0,
    labels={"user_tier": "regular"},
)

eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=6.0,  # 优先级更低
    incoming_task_pool="shared-pool",
    incoming_task_labels={"user_tier": "admin"},
)

assert eval_result["should_preempt"] is True  # 可以抢占
