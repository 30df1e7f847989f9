# 批量提交多个作业
jobs = []
for i in range(5):
    entrypoint = f"python /path/to/train.py --job_id job_{i}"
    submission_id = submit_job(
        entrypoint=entrypoint,
        job_id=f"batch_job_{i}",
        resource_requirements={"CPU": 2, "memory": 8.0},
        tags=["batch_training", f"iteration_{i}"]
    )
    jobs.append(submission_id)
    print(f"提交作业 {i}: {submission_id}")

# 等待所有作业完成
try:
    wait_for_all_jobs(jobs, check_interval=10, timeout=3600)
    print("所有批量作业完成")
except RuntimeError as e:
    print(f"部分作业失败: {e}")
