scheduler.update_preemption_policy(
    same_pool_priority_threshold=1.0,   # 同池：优先级差 >= 1.0
    cross_pool_priority_threshold=8.0,  # 跨池：优先级差 >= 8.0（更严格）
)
