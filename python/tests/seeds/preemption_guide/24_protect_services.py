scheduler.update_preemption_policy(
    protected_pools=[
        "production-api",
        "real-time-inference",
        "critical-services",
    ],
)
