# 配置抢占策略
scheduler.update_preemption_policy(
    same_pool_priority_threshold=1.0,    # 同池内抢占阈值
    cross_pool_priority_threshold=5.0,  # 跨池抢占阈值
    enable_cross_pool_preemption=True
)
