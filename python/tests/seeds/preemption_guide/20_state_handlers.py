from schedulemesh.core.actors.control.preemption_controller import TaskState

# 定义自定义状态保存器
def custom_state_preserver(task_state: TaskState) -> dict:
    """自定义状态序列化逻辑"""
    return {
        "task_id": task_state.task_id,
        "checkpoint_path": f"/checkpoints/{task_state.task_id}.ckpt",
        "custom_data": "my_serialized_data",
    }

# 定义自定义状态恢复器
def custom_state_restorer(saved_state: dict) -> None:
    """自定义状态恢复逻辑"""
    checkpoint_path = saved_state["checkpoint_path"]
    print(f"从 {checkpoint_path} 恢复任务...")
    # 实际恢复逻辑...

# 注册自定义处理器（通常在系统初始化时配置）
scheduler.register_state_handlers(
    pool_name="custom-pool",
    preserver=custom_state_preserver,
    restorer=custom_state_restorer,
)
