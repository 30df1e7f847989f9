# 错误：未初始化调度器就提交作业
submit_job("python /path/script.py")  # RuntimeError

# 正确：先初始化
from ray_multicluster_scheduler.app.client_api.unified_scheduler import initialize_scheduler_environment
initialize_scheduler_environment()
submit_job("python /path/script.py")
