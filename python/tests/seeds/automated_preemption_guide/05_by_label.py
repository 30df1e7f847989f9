# 配置标签抢占规则
scheduler.update_preemption_policy(
    enable_label_preemption=True,
    label_preemption_rules={
        "tier": {
            "premium": ["standard", "batch"],
            "standard": ["batch"]
        },
        "user_type": {
            "admin": ["user", "guest"],
            "user": ["guest"]
        }
    }
)
