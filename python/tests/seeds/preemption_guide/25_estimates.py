scheduler.register_running_task(
    task_id="training-job",
    agent_name="gpu-agent",
    pool_name="ml-pool",
    priority=2.0,
    estimated_duration=3600.0,  # 预计 1 小时
)
