# 配置租户抢占规则
scheduler.update_preemption_policy(
    label_preemption_rules={
        "user_tier": {
            "admin": ["vip", "regular"],  # 管理员可以抢占所有用户
            "vip": ["regular"],           # VIP 可以抢占普通用户
        }
    },
    label_priority_threshold=1.0,
    enable_label_preemption=True,
)

# 注册 regular 用户任务
scheduler.register_running_task(
    task_id="user-task",
    agent_name="shared-worker",
    pool_name="shared-pool",
    priority=10.0,  # 高优先级
    labels={"user_tier": "regular"},
)

# admin 用户任务（中等优先级）
eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=6.0,  # 优先级更低
    incoming_task_pool="shared-pool",
    incoming_task_labels={"user_tier": "admin"},
)

# admin 可以抢占 regular，即使优先级更低
assert eval_result["should_preempt"] is True
