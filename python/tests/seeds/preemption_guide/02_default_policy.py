PreemptionPolicy(
    same_pool_priority_threshold=1.0,      # 同池抢占的最小优先级差值
    cross_pool_priority_threshold=5.0,     # 跨池抢占的最小优先级差值
    remaining_time_weight=0.1,             # 剩余时间权重 κ
    min_preempt_score=0.5,                 # 最小抢占得分
    enable_cross_pool_preemption=True,     # 是否允许跨池抢占
    protected_pools=[],                     # 受保护的资源池列表
    
    # Label 级别抢占配置（新增）
    label_preemption_rules={},             # Label 抢占规则
    label_priority_threshold=0.5,          # Label 抢占优先级阈值
    enable_label_preemption=True,          # 是否启用 Label 抢占
)
