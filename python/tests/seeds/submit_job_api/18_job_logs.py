job_info = get_job_info(submission_id, cluster_name)
if job_info and 'logs' in job_info:
    print(f"作业日志:\n{job_info['logs']}")
