scheduler.update_preemption_policy(
    label_preemption_rules={
        # 服务等级抢占
        "tier": {
            "premium": ["standard", "batch"],
            "standard": ["batch"],
        },
        # 用户类型抢占
        "user_tier": {
            "admin": ["vip", "regular"],
            "vip": ["regular"],
        },
        # 优先级分类抢占
        "priority_class": {
            "critical": ["high", "normal", "low"],
            "high": ["normal", "low"],
            "normal": ["low"],
        },
    },
    label_priority_threshold=0.5,
    enable_label_preemption=True,
)
