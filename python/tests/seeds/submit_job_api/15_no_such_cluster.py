# 指定不存在的集群
try:
    submit_job("python /path/script.py", preferred_cluster="non_existent_cluster")
except Exception as e:
    print(f"集群不可用: {e}")
    # 调度器会自动尝试其他可用集群
