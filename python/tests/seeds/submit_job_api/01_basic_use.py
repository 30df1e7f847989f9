from ray_multicluster_scheduler.app.client_api.submit_job import submit_job, get_job_status, wait_for_all_jobs

# 初始化调度器环境（需要集群配置文件）
from ray_multicluster_scheduler.app.client_api.unified_scheduler import initialize_scheduler_environment
task_lifecycle_manager = initialize_scheduler_environment(config_file_path="clusters.yaml")

# 提交作业
entrypoint = "python /absolute/path/to/script.py --arg1 value1 --arg2 value2"
submission_id = submit_job(
    entrypoint=entrypoint,
    job_id="my_job_001",
    preferred_cluster="gpu_cluster",
    resource_requirements={"CPU": 4, "GPU": 1, "memory": 16.0}
)

print(f"作业提交成功，Submission ID: {submission_id}")

# 等待作业完成
wait_for_all_jobs([submission_id], check_interval=10)

# 查询作业状态
status = get_job_status(submission_id, "gpu_cluster")
print(f"作业状态: {status}")
