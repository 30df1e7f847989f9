# 创建第二个资源池
scheduler.create_pool(
    name="premium-pool",
    labels={"tier": "premium"},
    resources={"cpu": 2.0, "memory": 4096.0, "gpu": 1.0},
    target_agents=1,
)

# 在标准池有一个低优任务
scheduler.register_running_task(
    task_id="standard-job",
    agent_name="agent-1",
    pool_name="compute-pool",
    priority=2.0,
)

# 从高级池发起抢占请求
eval = scheduler.evaluate_preemption(
    incoming_task_priority=10.0,  # 差值 = 8.0 > 5.0（跨池阈值），满足条件
    incoming_task_pool="premium-pool",
)

if eval["should_preempt"]:
    candidate = eval["candidates"][0]
    assert candidate["reason"] == "cross_pool_preemption"
    # 执行抢占...
