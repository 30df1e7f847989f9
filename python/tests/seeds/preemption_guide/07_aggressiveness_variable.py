scheduler.update_preemption_policy(
    preemption_aggressiveness="env:SCHEDULEMESH_PREEMPTION_LEVEL",
)
