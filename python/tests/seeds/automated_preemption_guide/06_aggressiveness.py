# 使用预设的积极性级别
scheduler.update_preemption_policy(
    preemption_aggressiveness="high"  # "high", "medium", "low"
)
