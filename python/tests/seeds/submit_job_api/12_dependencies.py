# 实现作业间的依赖关系
preprocess_id = submit_job(
    entrypoint="python /path/to/preprocess.py --input data.csv",
    job_id="preprocess",
    tags=["preprocessing"]
)

# 等待预处理完成
wait_for_all_jobs([preprocess_id])

# 提交训练作业
train_id = submit_job(
    entrypoint="python /path/to/train.py --model bert",
    job_id="train",
    metadata={"depends_on": preprocess_id},
    tags=["training"]
)

# 等待训练完成
wait_for_all_jobs([train_id])

# 提交评估作业
eval_id = submit_job(
    entrypoint="python /path/to/evaluate.py --model output/model.pt",
    job_id="evaluate",
    metadata={"depends_on": train_id},
    tags=["evaluation"]
)
