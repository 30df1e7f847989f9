"""Saved states in files of your own: a preserver and a restorer for a pool.

An agent clusters points with k-means and writes its centres to a file every few rounds. When it makes way,
the pool's preserver is asked, rather than the agent: it keeps the file and says where it is. Later the
restorer puts the file back where the next attempt looks for it.

    python examples/preemption_file_state.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from story import Story, tell

from schedulemesh.core.actors.control.preemption_controller import TaskState
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

ROUNDS = 2000


class KMeans(AgentActor):
    """Groups 20,000 points around 8 centres, round by round; goes on from the file when there is one."""

    def __init__(self, name: str, labels: dict[str, str], file: str, rounds: int = ROUNDS) -> None:
        super().__init__(name, labels)
        self.file = Path(file)
        self.rounds = rounds

    def run(self, task_id: str | None = None) -> dict[str, Any]:
        points = np.random.default_rng(0).normal(size=(20_000, 2))
        centres, done = points[:8].copy(), 0
        if self.file.exists():
            state = json.loads(self.file.read_text())
            centres, done = np.array(state["centres"]), state["round"]
        began_at = done
        while done < self.rounds and not self.is_cancelled(task_id):
            nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
            centres = np.array([points[nearest == group].mean(axis=0) for group in range(8)])
            done += 1
            if done % 5 == 0:
                self.write({"round": done, "centres": centres.tolist()})
        return {"began_at": began_at, "rounds": done}

    def write(self, state: dict[str, Any]) -> None:
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(state))
        beside.replace(self.file)  # whoever reads it finds a whole one


def file_state_preserver(task: TaskState) -> dict[str, Any]:
    """Runs in a worker when a task of the pool makes way. What it returns is the saved state."""
    working = Path(task.payload["file"])
    kept = working.with_name(f"{task.task_id}.attempt-{task.attempt}.json")
    kept.write_text(working.read_text())
    working.unlink()
    return {"checkpoint_path": str(kept), "payload": task.payload}


def file_state_restorer(saved_state: dict[str, Any]) -> None:
    """Runs in a worker when ``restore_task`` is called."""
    kept = Path(saved_state["checkpoint_path"])
    Path(saved_state["payload"]["file"]).write_text(kept.read_text())


def main() -> None:
    story = Story(__doc__)
    with (
        tempfile.TemporaryDirectory(prefix="preemption-file-state-") as directory,
        SimpleScheduler("preemption-file-state", state_path=Path(directory, "mirror")) as scheduler,
    ):
        story.begin(scheduler)
        scheduler.ensure_pool("file-pool", resources={"cpu": 1, "memory": 512})
        scheduler.register_state_handlers("file-pool", file_state_preserver, file_state_restorer)

        def submit(task_id: str, priority: float, rounds: int) -> dict[str, Any]:
            file = str(Path(directory, task_id + ".json"))
            result: dict[str, Any] = scheduler.submit(
                task_id,
                "file-pool",
                KMeans,
                resources={"cpu": 1, "memory": 512},
                priority=priority,
                actor_kwargs={"file": file, "rounds": rounds},
                payload={"file": file},
                entry="run",
            )
            story.say(f"{task_id}, priority {priority:g}: {result.get('state', result.get('error'))}")
            return result

        story.part("1. A long clustering makes way; its file is kept")
        submit("segments", 2.0, rounds=10**9)
        working = Path(directory, "segments.json")
        story.wait_for(working.exists)
        submit("fraud-alert", 9.0, rounds=20)
        scheduler.wait("fraud-alert", timeout=120)
        saved = scheduler.client.task("segments")["saved_state"]
        story.say(f"saved: {saved}")
        kept = Path(saved["checkpoint_path"])
        story.check("the preserver kept the file", kept.exists() and not working.exists())
        names = (saved["task_id"], saved["pool_name"])
        story.check("task and pool were noted with what it returned", names == ("segments", "file-pool"))
        mirrored = json.loads(Path(directory, "mirror", "preemption-file-state", "segments.json").read_text())
        story.check("state_path has the saved state as well", mirrored == saved)

        story.part("2. It is restored, and goes on")
        done = scheduler.restore_task(saved)
        story.check("the restorer put the file back", done["success"] and working.exists())
        reached = json.loads(working.read_text())["round"]
        submit("segments", 2.0, rounds=reached + 50)
        result = scheduler.wait("segments", timeout=120)["result"]
        story.check(
            f"it went on from round {reached}",
            result == {"began_at": reached, "rounds": reached + 50},
        )

        story.part("3. A state that cannot be restored says so")
        kept.unlink()
        done = scheduler.restore_task(saved)
        story.say(f"restore_task answers: {done['error']}")
        story.check("restoring from a file that is gone fails with its reason", not done["success"])
        story.end()


if __name__ == "__main__":
    tell(main)
