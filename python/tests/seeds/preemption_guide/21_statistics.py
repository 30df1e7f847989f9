# 获取抢占统计信息
stats = scheduler.get_preemption_stats()

print(f"总抢占次数: {stats['total_preemptions']}")
print(f"同池抢占: {stats['same_pool_preemptions']}")
print(f"跨池抢占: {stats['cross_pool_preemptions']}")
print(f"当前运行任务数: {stats['running_tasks']}")

# 查看最近的抢占历史
for record in stats['recent_preemptions']:
    print(f"时间: {record['timestamp']}, 任务: {record['task_id']}, "
          f"池: {record['pool_name']}, 优先级: {record['priority']}")
