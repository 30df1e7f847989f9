# 请求超出集群可用资源的作业
try:
    submit_job("python /path/script.py", resource_requirements={"CPU": 1000})
except Exception as e:
    print(f"资源不足: {e}")
    # 考虑减少资源需求或等待集群资源释放
