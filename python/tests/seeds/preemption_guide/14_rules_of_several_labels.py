scheduler.update_preemption_policy(
    label_preemption_rules={
        # 基于服务等级的抢占
        "tier": {
            "premium": ["standard", "batch"],
            "standard": ["batch"],
        },
        # 基于用户类型的抢占
        "user_tier": {
            "admin": ["vip", "regular"],
            "vip": ["regular"],
        },
        # 基于优先级分类的抢占
        "priority_class": {
            "critical": ["high", "normal", "low"],
            "high": ["normal", "low"],
            "normal": ["low"],
        },
    },
    label_priority_threshold=0.5,
    enable_label_preemption=True,
)
