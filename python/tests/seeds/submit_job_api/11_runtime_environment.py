# 为特定作业定制运行时环境
custom_env = {
    "pip": [
        "torch==2.0.0",
        "torchvision==0.15.0",
        "transformers==4.30.0"
    ],
    "env_vars": {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": "/home/user/code:$PYTHONPATH"
    },
    "working_dir": "/home/user/project",
    "excludes": ["*.log", "tmp/*"]
}

submission_id = submit_job(
    entrypoint="python /home/user/project/main.py",
    runtime_env=custom_env,
    job_id="torch_training",
    preferred_cluster="gpu_cluster",
    resource_requirements={"CPU": 16, "GPU": 2, "memory": 64.0}
)
