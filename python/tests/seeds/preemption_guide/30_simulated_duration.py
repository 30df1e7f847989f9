ray.get(agent.process.remote(payload={}, task_id="job-1", simulated_duration=30.0))
