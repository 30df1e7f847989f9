import ray
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent_actor import AgentActor

# 初始化
ray.init()
scheduler = RayScheduler("demo-scheduler")

# 创建资源池
scheduler.create_pool(
    name="compute-pool",
    labels={"tier": "standard"},
    resources={"cpu": 4.0, "memory": 8192.0, "gpu": 0.0},
    target_agents=2,
)

# 创建 Agent
scheduler.create_agent(
    name="agent-1",
    pool="compute-pool",
    actor_class=AgentActor,
)

# 注册一个低优先级运行任务
scheduler.register_running_task(
    task_id="low-priority-job",
    agent_name="agent-1",
    pool_name="compute-pool",
    priority=1.0,
    labels={"pool": "compute-pool"},
    estimated_duration=60.0,  # 预计运行 60 秒
    payload={"data": "some work"},
)

# 当高优先级任务到达时，评估是否需要抢占
eval_result = scheduler.evaluate_preemption(
    incoming_task_priority=5.0,
    incoming_task_pool="compute-pool",
)

if eval_result["should_preempt"]:
    # 选择第一个候选（得分最高）
    candidate = eval_result["candidates"][0]
    print(f"抢占候选: {candidate['task_id']}, 得分: {candidate['preempt_score']}")
    
    # 执行抢占
    preempt_result = scheduler.execute_preemption(
        task_id=candidate["task_id"],
        agent_name=candidate["agent_name"],
    )
    
    if preempt_result["success"]:
        print(f"抢占成功，状态已保存: {preempt_result['saved_state']}")
        # 现在可以调度高优先级任务到该 Agent
