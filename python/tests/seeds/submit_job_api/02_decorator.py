from ray_multicluster_scheduler.app.client_api.submit_job import graceful_shutdown_on_keyboard_interrupt

@graceful_shutdown_on_keyboard_interrupt
def my_workflow():
    # 提交多个作业
    job1 = submit_job("python /path/to/job1.py", job_id="job1")
    job2 = submit_job("python /path/to/job2.py", job_id="job2")

    # 等待作业完成
    wait_for_all_jobs([job1, job2])
    print("所有作业完成")

if __name__ == "__main__":
    # 初始化调度器
    from ray_multicluster_scheduler.app.client_api.unified_scheduler import initialize_scheduler_environment
    initialize_scheduler_environment()

    # 运行工作流（Ctrl+C 会自动停止远程作业）
    my_workflow()
