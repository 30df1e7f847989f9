# 在提交前查看集群状态
from ray_multicluster_scheduler.app.client_api.unified_scheduler import get_unified_scheduler
scheduler = get_unified_scheduler()
clusters = scheduler.list_clusters()
print(f"可用集群: {clusters}")
