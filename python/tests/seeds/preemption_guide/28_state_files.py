from pathlib import Path
import json

from schedulemesh.core.actors.control.preemption_controller import TaskState

CHECKPOINT_DIR = Path("/var/lib/schedulemesh/checkpoints")
CHECKPOINT_DIR.mkdir(parents=True, exist_ok=True)

def file_state_preserver(task_state: TaskState) -> dict:
    data = {
        "task_id": task_state.task_id,
        "pool": task_state.pool_name,
        "payload": task_state.payload,
    }
    path = CHECKPOINT_DIR / f"{task_state.task_id}.json"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return {"task_id": task_state.task_id, "checkpoint_path": str(path)}

def file_state_restorer(saved_state: dict) -> None:
    path = Path(saved_state["checkpoint_path"])
    payload = json.loads(path.read_text(encoding="utf-8"))
    # 将 payload 回放到业务系统

scheduler.register_state_handlers(
    pool_name="file-pool",
    preserver=file_state_preserver,
    restorer=file_state_restorer,
)
