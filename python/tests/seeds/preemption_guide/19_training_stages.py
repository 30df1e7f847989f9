from schedulemesh.core.controllers.ray_scheduler import RayScheduler
from examples.training_preemption_demo import TrainingAgentActor

scheduler = RayScheduler("training-preemption")

# 语义化配置：后训练阶段优先于预训练
scheduler.update_preemption_policy(
    enable_label_preemption=True,
    label_preemption_rules={
        "training_stage": {
            "rlhf": ["pretraining", "sft"],
            "dpo": ["pretraining"],
            "sft": ["pretraining"],
        }
    },
    preemption_aggressiveness="medium",  # 自动设置阈值
)

# 预训练任务先占用资源池
scheduler.submit_task_with_preemption(
    task_id="llama-70b-pretrain",
    pool_name="pretrain-pool",
    priority=5.0,
    resources={"cpu": 2.0, "memory": 4096.0},
    labels={"training_stage": "pretraining"},
    actor_class=TrainingAgentActor,
    actor_kwargs={"supervisor": scheduler.supervisor_handle()},
)

# RLHF 任务到达时，即使优先级数值相同，也会基于 label 触发抢占
rlhf = scheduler.submit_task_with_preemption(
    task_id="llama-7b-rlhf",
    pool_name="pretrain-pool",
    priority=5.0,
    resources={"cpu": 1.0, "memory": 2048.0},
    labels={"training_stage": "rlhf"},
    actor_class=TrainingAgentActor,
    actor_kwargs={"supervisor": scheduler.supervisor_handle()},
)

assert rlhf["success"], rlhf
