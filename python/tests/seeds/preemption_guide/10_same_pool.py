# 同一资源池内的任务抢占，门槛较低（默认优先级差 >= 1.0）

# 注册低优先级任务
scheduler.register_running_task(
    task_id="batch-job",
    agent_name="agent-1",
    pool_name="compute-pool",
    priority=1.0,  # 低优先级
)

# 高优先级任务到达
eval = scheduler.evaluate_preemption(
    incoming_task_priority=3.0,  # 差值 = 2.0 > 1.0，满足条件
    incoming_task_pool="compute-pool",
)

assert eval["should_preempt"] is True
assert eval["candidates"][0]["reason"] == "same_pool_preemption"
