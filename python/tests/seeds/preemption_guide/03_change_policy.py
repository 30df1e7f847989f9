import ray
from schedulemesh.core import RayScheduler

ray.init()

# 以 detached 模式运行调度器并指定持久化目录，方便其它进程通过 RayScheduler.attach 复用
scheduler = RayScheduler("my-scheduler", detached=True, state_path="/var/lib/schedulemesh")

# 更新抢占策略
scheduler.update_preemption_policy(
    cross_pool_priority_threshold=10.0,  # 提高跨池抢占门槛
    protected_pools=["critical-pool"],    # 保护关键资源池
    enable_cross_pool_preemption=True,
)
