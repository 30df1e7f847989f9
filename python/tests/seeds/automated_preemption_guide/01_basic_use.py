from schedulemesh.simple import SimpleScheduler

# 创建调度器，并确保资源池存在
scheduler = SimpleScheduler("my-scheduler")
scheduler.ensure_pool(
    name="my-pool",
    labels={"tier": "standard"},
    resources={"cpu": 2, "memory": 4.0},
)

# 配置抢占策略（可选）
scheduler.configure_preemption(
    preemption_aggressiveness="medium",
    label_preemption_rules={"tier": {"premium": ["standard"]}},
)

# 提交任务（支持自动抢占）
result = scheduler.submit(
    task_id="my-task-001",
    pool="my-pool",
    resources={"cpu": 1, "memory": 2.0},
    priority=8.0,  # 高优先级
    labels={"tier": "premium", "user": "alice"},
    actor_class=MyTaskActor,
    actor_kwargs={"duration": 60.0}
)

if result["success"]:
    print(f"任务提交成功: {result['agent']}")
else:
    print(f"任务提交失败: {result['error']}")
