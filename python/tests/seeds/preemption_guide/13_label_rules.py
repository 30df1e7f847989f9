# 配置基于 tier label 的分级抢占
scheduler.update_preemption_policy(
    label_preemption_rules={
        "tier": {
            "premium": ["standard", "batch"],  # premium 可以抢占 standard 和 batch
            "standard": ["batch"],             # standard 可以抢占 batch
        }
    },
    label_priority_threshold=0.5,  # Label 抢占只需较低的优先级差值
    enable_label_preemption=True,
)
