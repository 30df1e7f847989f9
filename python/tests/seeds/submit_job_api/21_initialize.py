# 1. 指定配置文件初始化
initialize_scheduler_environment(config_file_path="clusters.yaml")

# 2. 或不指定配置文件（使用默认位置）
initialize_scheduler_environment()

# 3. 懒初始化（首次调用 submit_job 时自动初始化）
# 需要确保集群配置文件在默认位置
