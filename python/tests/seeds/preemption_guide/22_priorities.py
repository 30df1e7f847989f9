PRIORITY_CRITICAL = 10.0   # 关键任务（SLA 保证）
PRIORITY_HIGH = 5.0        # 高优先级
PRIORITY_NORMAL = 1.0      # 普通任务
PRIORITY_LOW = 0.5         # 低优先级（批处理）
PRIORITY_BACKGROUND = 0.1  # 后台任务
