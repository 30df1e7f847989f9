scheduler.update_preemption_policy(
    enable_label_preemption=False,  # 禁用 label 抢占
)

# 此时只能使用 pool 级别的抢占规则
