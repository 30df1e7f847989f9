from schedulemesh.config.policy import PreemptionAggressiveness

scheduler.update_preemption_policy(
    preemption_aggressiveness=PreemptionAggressiveness.HIGH,
)
