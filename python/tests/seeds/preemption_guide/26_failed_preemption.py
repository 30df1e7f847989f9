preempt_result = scheduler.execute_preemption(task_id, agent_name)

if not preempt_result["cancel_success"]:
    print("任务取消失败，但状态已保存")
    saved_state = preempt_result["saved_state"]
    # 根据业务逻辑决定是否重试或手动干预
