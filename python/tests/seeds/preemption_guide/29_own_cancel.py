from schedulemesh.core.agent_actor import AgentActor

class MyAgent(AgentActor):
    @ray.method(num_returns=1)
    def cancel(self, task_id: str) -> dict:
        # 返回结构需与基类一致
        return super().cancel(task_id)
