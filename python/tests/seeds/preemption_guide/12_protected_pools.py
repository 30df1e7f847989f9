# 设置生产环境池为受保护池
scheduler.update_preemption_policy(
    protected_pools=["production-pool", "critical-services"],
)

# 在受保护池运行任务
scheduler.register_running_task(
    task_id="prod-service",
    agent_name="prod-agent",
    pool_name="production-pool",
    priority=5.0,
)

# 即使有更高优先级的跨池任务，也无法抢占受保护池
eval = scheduler.evaluate_preemption(
    incoming_task_priority=100.0,  # 超高优先级
    incoming_task_pool="other-pool",
)

assert eval["should_preempt"] is False  # 受保护，不能抢占
