"""The code blocks of the documents ScheduleMesh was built from, against a real server on real Ray.

Each file under ``seeds/<document>/`` is one block of that document, unchanged, numbered as they come; a file
that is not ``.py`` is a block that shows something else than a program. Blocks of one section share their
variables and follow each other; each section has a scheduler of its own. What a block takes for granted (a
pool, an agent, a class) its test makes first; what the section says besides, its test looks at afterwards.

One block of preemption_guide lacks the end of its fence: 03_change_policy.py ends where the prose begins.
Blocks write below /var/lib/schedulemesh, here a temporary directory.
"""

# ruff: noqa: RUF001 - what blocks print is in Chinese

from __future__ import annotations

import ast
import json
import logging
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, connect, held, remove, until
from schedulemesh import local
from schedulemesh.config.policy import PreemptionAggressiveness
from schedulemesh.core import RayScheduler
from schedulemesh.core.actors.control.preemption_controller import PreemptionPolicy
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.simple import SimpleScheduler

sys.path.insert(0, str(ROOT))  # `examples` is imported as from a checkout
SEEDS = Path(__file__).parent / "seeds"
TASK_ACTOR = """
class MyTaskActor:
    def __init__(self, name, labels, duration=1.0):
        self.name, self.labels, self.duration = name, labels, duration

    def cancel(self, task_id):
        return {"success": True, "task_id": task_id}

    def about(self):
        return self.name, self.labels, self.duration
"""


class Section:
    """The variables of a section, in which its blocks run."""

    def __init__(self, document: str, home: Path) -> None:
        self.document = document
        self.home = home
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def given(self, code: str = "", **names: Any) -> None:
        """What the blocks take for granted."""
        self.names.update(names)
        exec(code, self.names)

    def text(self, block: str) -> str:
        return (SEEDS / self.document / block).read_text(encoding="utf-8")

    def run(self, block: str, made: Callable[[Any], object] = lambda scheduler: None) -> None:
        """Run a block, statement by statement; ``made`` gets the scheduler the block makes, at once, so that
        it can have what the statements behind take for granted."""
        text = self.text(block).replace("/var/lib/schedulemesh", str(self.home))
        known = self.names.get("scheduler")
        for statement in ast.parse(text, block).body:
            exec(compile(ast.Module([statement], []), block, "exec"), self.names)
            if self.names.get("scheduler") is not known:
                known = self.names["scheduler"]
                made(known)

    def close(self, server: local.Started) -> None:
        scheduler = self.names.get("scheduler")
        if scheduler is None:
            return
        scheduler.shutdown()
        if getattr(scheduler, "scheduler", scheduler).detached:
            remove(server, scheduler.name)


@pytest.fixture
def section(driver: local.Started, ray_address: str, tmp_path: Path) -> Iterator[Callable[..., Section]]:
    """Opens sections."""
    opened: list[Section] = []

    def open_section(document: str, **names: Any) -> Section:
        opened.append(Section(document, tmp_path))
        opened[-1].given(**names)
        return opened[-1]

    yield open_section
    connect(ray_address)  # a block may have let go
    for one in opened:
        one.close(driver)


@pytest.fixture
def unconnected(ray_address: str) -> Iterator[None]:
    """For sections whose blocks connect to Ray themselves."""
    import ray

    ray.shutdown()
    yield
    connect(ray_address)


def candidates(scheduler: Any, priority: float, pool: str, **labels: str) -> dict[str, dict[str, Any]]:
    found = scheduler.evaluate_preemption(priority, pool, labels)
    assert found["should_preempt"] is bool(found["candidates"])
    return {candidate["task_id"]: candidate for candidate in found["candidates"]}


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# Automated preemption.

AUTOMATED = "automated_preemption_guide"


def test_basic_use(section: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import ray

    here = section(AUTOMATED)
    here.given(TASK_ACTOR)
    here.run("01_basic_use.py")
    scheduler, result = here["scheduler"], here["result"]
    assert "任务提交成功" in capsys.readouterr().out

    # The answer has the keys, and the kinds of values, that are shown.
    handle = ray.get_actor(result["agent"].actor_name, namespace=result["agent"].ray_namespace)
    shown = eval(here.text("02_answer_of_success.txt").replace("<ray.actor.ActorHandle>", "h"), {"h": handle})
    assert shown.keys() <= result.keys()
    assert shown["agent"].keys() <= result["agent"].keys()
    assert isinstance(result["agent"]["handle"], type(shown["agent"]["handle"]))
    assert result["success"] is True
    assert result["agent"]["resources"] == {"cpu": 1, "memory": 2.0}
    assert result["agent"]["labels"] == {"pool": "my-pool", "tier": "premium", "user": "alice"}
    assert result["agent"]["name"].startswith("my-pool-agent-")
    name, labels, duration = ray.get(result["agent"]["handle"].about.remote())
    assert (name, labels) == (result["agent"]["name"], result["agent"]["labels"])
    assert duration == 60.0

    # A second premium task fills the pool; a third finds nobody to make way.
    more = {"pool": "my-pool", "actor_class": here["MyTaskActor"], "resources": {"cpu": 1, "memory": 2.0}}
    assert scheduler.submit(task_id="second", labels={"tier": "premium"}, priority=8.0, **more)["success"]
    refused = scheduler.submit(task_id="third", labels={"tier": "premium"}, priority=8.0, **more)
    assert refused.items() >= ast.literal_eval(here.text("03_answer_of_failure.txt")).items()
    assert held(scheduler) == {"my-pool": {"cpu": 2, "memory": 4}}
    assert [pool["running"] for pool in scheduler.list_pools()] == [2]

    # Standard tasks make way for premium ones, by the rule that was configured.
    for task_id in ("my-task-001", "second"):
        assert scheduler.complete(task_id)["success"]
        assert scheduler.submit(task_id=f"standard-{task_id}", labels={"tier": "standard"}, **more)["success"]
    taken = scheduler.submit(task_id="fourth", labels={"tier": "premium"}, priority=5.0, **more)
    assert taken["success"]
    assert [victim["reason"] for victim in taken["preempted"]] == ["label_based_preemption"]
    assert scheduler.stats()["label_preemptions"] == 1


def test_by_priority(section: Any, scheduler: RayScheduler) -> None:
    here = section(AUTOMATED, scheduler=scheduler)
    here.run("04_by_priority.py")
    scheduler.register_running_task("low", "agent", "pool-a", 1.0)
    assert candidates(scheduler, 1.9, "pool-a") == {}
    assert candidates(scheduler, 2.0, "pool-a")["low"]["reason"] == "same_pool_preemption"
    assert candidates(scheduler, 5.9, "pool-b") == {}
    assert candidates(scheduler, 6.0, "pool-b")["low"]["reason"] == "cross_pool_preemption"


def test_by_label(section: Any, scheduler: RayScheduler) -> None:
    here = section(AUTOMATED, scheduler=scheduler)
    here.run("05_by_label.py")
    assert_rules(
        scheduler,
        {
            "tier": {"premium": ["standard", "batch"], "standard": ["batch"]},
            "user_type": {"admin": ["user", "guest"], "user": ["guest"]},
        },
    )


def assert_rules(scheduler: Any, rules: dict[str, dict[str, list[str]]]) -> None:
    """Exactly the victims that the rules list may be taken, at equal priority and in any pool."""
    everybody = set()
    for key, hierarchy in rules.items():
        values = {*hierarchy, *(low for lows in hierarchy.values() for low in lows)}
        for value in values:
            scheduler.register_running_task(f"{key}-{value}", "agent", "pool-a", 5.0, {key: value})
        everybody |= {(key, value) for value in values}
    for key, value in everybody:
        for pool in ("pool-a", "pool-b"):
            found = candidates(scheduler, 5.0, pool, **{key: value})
            assert set(found) == {f"{key}-{low}" for low in rules[key].get(value, [])}
            assert {c["reason"] for c in found.values()} <= {"label_based_preemption"}


def test_aggressiveness_by_level(section: Any, scheduler: RayScheduler) -> None:
    here = section(AUTOMATED, scheduler=scheduler)
    here.run("06_aggressiveness.py")
    assert thresholds(scheduler) == (0.1, 0.5)


def thresholds(scheduler: Any) -> tuple[float, float]:
    policy = scheduler.get_preemption_policy()
    return policy["label_priority_threshold"], policy["same_pool_priority_threshold"]


# Preemption by label.

LABELS = "label_preemption"
THREE_RULES = {
    "tier": {"premium": ["standard", "batch"], "standard": ["batch"]},
    "user_tier": {"admin": ["vip", "regular"], "vip": ["regular"]},
    "priority_class": {"critical": ["high", "normal", "low"], "high": ["normal", "low"], "normal": ["low"]},
}


def test_rules_of_several_labels(section: Any, scheduler: RayScheduler) -> None:
    here = section(LABELS, scheduler=scheduler)
    here.run("01_rules_of_several_labels.py")
    assert_rules(scheduler, THREE_RULES)
    # Rules count as written, each label by itself, and one that matches is enough.
    mixed = candidates(scheduler, 5.0, "pool-b", tier="standard", user_tier="admin")
    assert set(mixed) == {"tier-batch", "user_tier-vip", "user_tier-regular"}


def test_label_scenario_of_tiers(section: Any, scheduler: RayScheduler) -> None:
    here = section(LABELS, scheduler=scheduler)
    here.run("02_tiers.py")
    (candidate,) = here["eval_result"]["candidates"]
    assert candidate["task_id"] == "standard-job"
    assert candidate["agent_name"] == "worker-1"
    assert candidate["pool_name"] == "pool-a"
    assert candidate["reason"] == "label_based_preemption"
    assert candidate["preempt_score"] == 0.5  # the threshold, for a difference of 0


def test_label_scenario_of_tenants(section: Any, scheduler: RayScheduler) -> None:
    here = section(LABELS, scheduler=scheduler)
    here.run("03_tenants.py")
    (candidate,) = here["eval_result"]["candidates"]
    assert (candidate["task_id"], candidate["reason"]) == ("regular-task", "label_based_preemption")
    # Without the label it would be the other way round.
    assert candidates(scheduler, 6.0, "shared-pool") == {}


def test_label_scenario_across_pools(section: Any, scheduler: RayScheduler) -> None:
    here = section(LABELS, scheduler=scheduler)
    here.run("04_across_pools.py")
    assert here["eval_result"]["candidates"][0]["task_id"] == "standard-in-a"
    assert candidates(scheduler, 7.0, "pool-b") == {}  # 2 is less than 10


def test_what_is_said_of_rules_is_so(section: Any, scheduler: RayScheduler) -> None:
    here = section(LABELS, scheduler=scheduler)
    for block in ("07_format.txt", "08_format_example.txt"):
        rules = ast.literal_eval(here.text(block))
        policy = scheduler.update_preemption_policy(label_preemption_rules=rules)
        assert policy["label_preemption_rules"] == rules
    assert_rules(scheduler, rules)


@pytest.mark.parametrize("block", ["05_example.sh", "06_tests.sh"])
def test_the_files_that_commands_name_are_there(section: Any, block: str) -> None:
    named = [word for word in shlex.split(section(LABELS).text(block)) if word.endswith(".py")]
    assert named
    for file in named:
        assert (ROOT / file).is_file() or (ROOT / "python" / file).is_file(), file


# The preemption guide: policy.

GUIDE = "preemption_guide"


def test_the_score_is_what_the_formula_says(section: Any, scheduler: RayScheduler) -> None:
    assert section(GUIDE).text("01_score.txt").strip() == "preempt_score = Δpriority + κ × remaining_time"
    scheduler.register_running_task("soon", "a", "pool", 2.0, estimated_duration=100.0)
    scheduler.register_running_task("unknown", "b", "pool", 2.0)
    found = candidates(scheduler, 5.0, "pool")
    assert list(found) == ["soon", "unknown"]  # best first
    assert found["soon"]["preempt_score"] == pytest.approx(3.0 + 0.1 * 100.0, abs=0.5)
    assert found["unknown"]["preempt_score"] == 3.0
    scheduler.update_preemption_policy(remaining_time_weight=0.5)
    assert candidates(scheduler, 5.0, "pool")["soon"]["preempt_score"] == pytest.approx(53.0, abs=2.5)


def test_the_default_policy(section: Any, scheduler: RayScheduler) -> None:
    shown = eval(section(GUIDE).text("02_default_policy.py"), {"PreemptionPolicy": PreemptionPolicy})
    assert shown == PreemptionPolicy()
    assert scheduler.get_preemption_policy().items() >= shown.as_dict().items()


@pytest.mark.usefixtures("unconnected")
def test_changing_the_policy(
    section: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    caplog.set_level(logging.INFO, "schedulemesh")
    here = section(GUIDE, SimpleScheduler=SimpleScheduler)
    here.run("03_change_policy.py")
    scheduler = here["scheduler"]
    policy = scheduler.get_preemption_policy()
    assert policy["cross_pool_priority_threshold"] == 10.0
    assert policy["protected_pools"] == ["critical-pool"]
    assert policy["enable_cross_pool_preemption"] is True
    assert policy["same_pool_priority_threshold"] == 1.0  # what is not named stays
    assert (here.home / "my-scheduler").is_dir()
    # Others may attach, and its agents' health can be looked after.
    attached = RayScheduler.attach("my-scheduler")
    assert attached.get_preemption_policy() == policy
    attached.shutdown()
    assert scheduler.ensure_agent_health(timeout=120)["success"] is True

    here.run("04_aggressiveness_enum.py")
    assert thresholds(scheduler) == (0.1, 0.5)

    scheduler.update_preemption_policy(preemption_aggressiveness=PreemptionAggressiveness.LOW)
    assert thresholds(scheduler) == (1.0, 3.0)
    caplog.clear()
    here.run("05_aggressiveness_word.py")
    assert thresholds(scheduler) == (0.1, 0.5)
    assert any("urgent" in line and "HIGH" in line for line in logged(caplog, logging.INFO))

    scheduler.update_preemption_policy(preemption_aggressiveness="batch")
    for value in (None, "", "enormous"):
        monkeypatch.delenv("SCHEDULEMESH_PREEMPTION_LEVEL", raising=False)
        if value is not None:
            monkeypatch.setenv("SCHEDULEMESH_PREEMPTION_LEVEL", value)
        caplog.clear()
        here.run("07_aggressiveness_variable.py")
        assert thresholds(scheduler) == (1.0, 3.0)
        assert any("SCHEDULEMESH_PREEMPTION_LEVEL" in line for line in logged(caplog, logging.WARNING))
    _, assignment = shlex.split(here.text("06_aggressiveness_variable.sh"))
    monkeypatch.setenv(*assignment.split("="))
    here.run("07_aggressiveness_variable.py")
    assert thresholds(scheduler) == (0.1, 0.5)
    assert ray.is_initialized()


@pytest.mark.parametrize(
    ("level", "words", "expected"),
    [
        ("HIGH", ("high", "urgent", "critical", "prod"), (0.1, 0.5)),
        ("MEDIUM", ("medium", "default", "normal"), (0.5, 1.0)),
        ("LOW", ("low", "background", "batch"), (1.0, 3.0)),
    ],
)
def test_words_for_aggressiveness(
    simple: SimpleScheduler, level: str, words: tuple[str, ...], expected: tuple[float, float]
) -> None:
    other = "low" if level != "LOW" else "high"
    for word in (getattr(PreemptionAggressiveness, level), *words, words[0].upper(), words[-1].title()):
        simple.configure_preemption(preemption_aggressiveness=other)
        assert thresholds(simple) != expected
        simple.configure_preemption(preemption_aggressiveness=word)
        assert thresholds(simple) == expected


def test_submitting_in_one_call(section: Any, name: str) -> None:
    here = section(GUIDE, scheduler=RayScheduler(name))
    here["scheduler"].create_pool("pretrain-pool", resources={"cpu": 2.0, "memory": 4096.0})
    here.run("08_submit.py")
    agent = here["result"]["agent"]
    assert agent.labels == {"pool": "pretrain-pool", "training_stage": "rlhf"}

    def metrics() -> Any:
        (found,) = here["scheduler"].list_agents("pretrain-pool")
        return found["metrics"]

    assert until(metrics)["step"] > 0
    # What cannot be run raises, as the sample has it.
    assert here["scheduler"].complete("critical-train-job")["success"]
    here["scheduler"].create_pool("pretrain-pool", resources={"cpu": 1.0, "memory": 4096.0})
    with pytest.raises(RuntimeError, match="cpu"):
        here.run("08_submit.py")


# The preemption guide: examples.


@pytest.mark.usefixtures("unconnected")
def test_1_basic_preemption(section: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import ray

    here = section(GUIDE)
    here.run("09_basic_preemption.py")
    scheduler, candidate, done = here["scheduler"], here["candidate"], here["preempt_result"]
    out = capsys.readouterr().out
    assert "抢占候选: low-priority-job, 得分: " in out
    assert "抢占成功，状态已保存: " in out
    assert candidate["preempt_score"] == pytest.approx(4.0 + 0.1 * 60.0, abs=0.5)
    assert candidate["reason"] == "same_pool_preemption"
    assert done["cancel_success"] is True
    assert done["saved_state"]["agent"] == "agent-1"
    # The agent is still there, idle, and takes the task it was wanted for.
    (agent,) = scheduler.list_agents()
    assert agent["task_ids"] == []
    assert ray.get(agent.handle.ping.remote()) == "pong"
    assert scheduler.register_running_task("high", "agent-1", "compute-pool", 5.0)["success"]
    assert scheduler.list_agents()[0]["task_ids"] == ["high"]
    stats = scheduler.get_preemption_stats()
    assert (stats["total_preemptions"], stats["failed_cancels"], stats["running_tasks"]) == (1, 0, 1)


def compute_pool(scheduler: Any) -> None:
    scheduler.create_pool(
        "compute-pool", {"tier": "standard"}, {"cpu": 4.0, "memory": 8192.0}, target_agents=2
    )
    scheduler.create_agent(name="agent-1", pool="compute-pool", actor_class=AgentActor)


def test_2_within_a_pool(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    compute_pool(scheduler)
    here.run("10_same_pool.py")
    assert here["eval"]["candidates"][0]["preempt_score"] == 2.0
    assert candidates(scheduler, 1.9, "compute-pool") == {}


def test_3_across_pools(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    compute_pool(scheduler)
    here.run("11_cross_pool.py")
    assert here["eval"]["should_preempt"] is True
    assert here["candidate"]["task_id"] == "standard-job"
    assert candidates(scheduler, 6.9, "premium-pool") == {}


def test_4_protected_pools(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("12_protected_pools.py")
    assert here["eval"]["candidates"] == []
    # Within the pool, and once it is no longer protected, it is as ever.
    assert set(candidates(scheduler, 100.0, "production-pool")) == {"prod-service"}
    scheduler.update_preemption_policy(protected_pools=[])
    assert set(candidates(scheduler, 100.0, "other-pool")) == {"prod-service"}


def test_5_labels(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    compute_pool(scheduler)
    here.run("13_label_rules.py")
    here.run("14_rules_of_several_labels.py")
    assert scheduler.get_preemption_policy()["label_preemption_rules"] == THREE_RULES
    here.run("15_tiers.py")
    here.run("16_labels_across_pools.py")
    here.run("17_tenants.py")
    assert here["eval_result"]["candidates"][0]["task_id"] == "user-task"
    assert here["eval_result"]["candidates"][0]["preempt_score"] == 1.0  # the threshold
    here.run("18_without_labels.py")
    assert candidates(scheduler, 6.0, "shared-pool", user_tier="admin") == {}
    fallback = candidates(scheduler, 11.0, "shared-pool", user_tier="admin")
    assert {task_id: c["reason"] for task_id, c in fallback.items()} == {"user-task": "same_pool_preemption"}


@pytest.mark.parametrize("block", ["13_label_rules.py", "14_rules_of_several_labels.py"])
def test_5_rules(section: Any, scheduler: RayScheduler, block: str) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run(block)
    assert_rules(scheduler, scheduler.get_preemption_policy()["label_preemption_rules"])


def test_6_training_stages(section: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "schedulemesh")
    here = section(GUIDE)
    here.run(
        "19_training_stages.py",
        made=lambda s: s.create_pool("pretrain-pool", resources={"cpu": 2.0, "memory": 4096.0}),
    )
    scheduler, rlhf = here["scheduler"], here["rlhf"]
    assert thresholds(scheduler) == (0.5, 1.0)
    (victim,) = rlhf["preempted"]
    assert (victim["task_id"], victim["reason"]) == ("llama-70b-pretrain", "label_based_preemption")
    # What was decided is said: resources short, target found, victim, score.
    assert any("resources short task_id=llama-7b-rlhf" in line for line in logged(caplog, logging.WARNING))
    found = [line for line in logged(caplog, logging.INFO) if "preemption target found" in line]
    assert len(found) == 1
    assert "victim_task=llama-70b-pretrain" in found[0]
    assert f"score={victim['preempt_score']}" in found[0]
    # Pretraining saved a checkpoint and gave up its room; RLHF has it.
    (record,) = scheduler.get_preemption_stats()["recent_preemptions"]
    assert record["saved_state"]["step"] >= 0
    assert {"coef_", "intercept_"} <= record["saved_state"].keys()
    assert held(scheduler) == {"pretrain-pool": {"cpu": 1, "memory": 2048}}
    (agent,) = scheduler.list_agents()
    assert agent["task_ids"] == ["llama-7b-rlhf"]


def test_7_state_handlers(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("20_state_handlers.py")
    done = preempted(scheduler, "custom-pool", "job/7")
    assert done["success"]
    assert done["saved_state"] == {
        "task_id": "job/7",
        "pool_name": "custom-pool",
        "checkpoint_path": "/checkpoints/job/7.ckpt",
        "custom_data": "my_serialized_data",
    }
    restored = scheduler.restore_task(done["saved_state"])
    assert restored["success"] is True, restored
    assert (restored["task_id"], restored["pool_name"]) == ("job/7", "custom-pool")


def preempted(scheduler: Any, pool: str, task_id: str, actor_class: Any = AgentActor) -> dict[str, Any]:
    """Register a task on an agent of a new pool, and preempt it."""
    scheduler.create_pool(pool, resources={"cpu": 1})
    scheduler.create_agent(name=f"{pool}-agent", pool=pool, actor_class=actor_class, resources={"cpu": 0.5})
    scheduler.register_running_task(task_id, f"{pool}-agent", pool, 1.0, payload={"step": 3})
    done: dict[str, Any] = scheduler.execute_preemption(task_id, f"{pool}-agent")
    return done


def test_8_statistics(section: Any, scheduler: RayScheduler, capsys: pytest.CaptureFixture[str]) -> None:
    here = section(GUIDE, scheduler=scheduler)
    before = time.time()
    preempted(scheduler, "pool-a", "first")
    preempted(scheduler, "pool-b", "second")
    scheduler.register_running_task("still-running", "elsewhere", "pool-c", 1.0)
    here.run("21_statistics.py")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "总抢占次数: 2"
    assert out[3] == "当前运行任务数: 1"
    assert [re.sub("时间: [^,]*", "", line) for line in out[4:]] == [
        ", 任务: second, 池: pool-b, 优先级: 1",
        ", 任务: first, 池: pool-a, 优先级: 1",
    ]
    for record in here["stats"]["recent_preemptions"]:
        assert before - 5 < record["timestamp"] < time.time() + 5


# The preemption guide: good practice, and what can fail.


def test_practice_priorities(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("22_priorities.py")
    levels = {name: value for name, value in here.names.items() if name.startswith("PRIORITY_")}
    for name, priority in levels.items():
        scheduler.register_running_task(name, "agent", "pool", priority)
    found = list(candidates(scheduler, levels["PRIORITY_CRITICAL"], "pool"))
    assert found == ["PRIORITY_BACKGROUND", "PRIORITY_LOW", "PRIORITY_NORMAL", "PRIORITY_HIGH"]


def test_practice_cross_pool_threshold(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("23_cross_pool_threshold.py")
    scheduler.register_running_task("low", "agent", "pool-a", 1.0)
    assert candidates(scheduler, 8.9, "pool-b") == {}
    assert set(candidates(scheduler, 9.0, "pool-b")) == {"low"}
    assert set(candidates(scheduler, 2.0, "pool-a")) == {"low"}


def test_practice_protected_services(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("24_protect_services.py")
    for pool in ("production-api", "real-time-inference", "critical-services", "batch"):
        scheduler.register_running_task(f"in-{pool}", "agent", pool, 0.1)
    assert set(candidates(scheduler, 100.0, "elsewhere")) == {"in-batch"}


def test_practice_estimates(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("25_estimates.py")
    scheduler.register_running_task("no-estimate", "another-agent", "ml-pool", 1.0)
    found = candidates(scheduler, 5.0, "ml-pool")
    assert list(found) == ["training-job", "no-estimate"]
    assert found["training-job"]["remaining_time"] == pytest.approx(3600, abs=10)


class NeverStops(AgentActor):
    """Cannot be cancelled."""

    def cancel(self, task_id: str) -> dict[str, Any]:
        raise RuntimeError("not now")


def test_a_preemption_that_fails(
    section: Any, scheduler: RayScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    here = section(GUIDE, scheduler=scheduler, task_id="stubborn", agent_name="a")
    scheduler.create_pool("pool", resources={"cpu": 1})
    scheduler.create_agent(name="a", pool="pool", actor_class=NeverStops, resources={"cpu": 0.5})
    scheduler.register_running_task("stubborn", "a", "pool", 1.0)
    here.run("26_failed_preemption.py")
    assert "任务取消失败，但状态已保存" in capsys.readouterr().out
    assert here["saved_state"]["agent"] == "a"
    assert "not now" in here["preempt_result"]["error"]
    assert scheduler.get_preemption_stats()["failed_cancels"] == 1


def test_a_restore_that_fails(
    section: Any, scheduler: RayScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(saved_state: dict[str, Any]) -> None:
        raise ValueError(f"no checkpoint {saved_state['checkpoint_path']}")

    scheduler.register_state_handlers("custom-pool", restorer=broken)
    saved_state = {"task_id": "t", "pool_name": "custom-pool", "checkpoint_path": "/gone.ckpt"}
    here = section(GUIDE, scheduler=scheduler, saved_state=saved_state)
    here.run("27_failed_restore.py")
    out = capsys.readouterr().out
    assert "恢复失败: " in out
    assert "no checkpoint /gone.ckpt" in out


def test_state_as_files(section: Any, scheduler: RayScheduler) -> None:
    here = section(GUIDE, scheduler=scheduler)
    here.run("28_state_files.py")
    done = preempted(scheduler, "file-pool", "job-1")
    file = here.home / "checkpoints" / "job-1.json"
    assert done["saved_state"] == {
        "task_id": "job-1",
        "pool_name": "file-pool",
        "checkpoint_path": str(file),
    }
    assert json.loads(file.read_text()) == {"task_id": "job-1", "pool": "file-pool", "payload": {"step": 3}}
    assert scheduler.restore_task(done["saved_state"])["success"] is True
    file.unlink()
    gone = scheduler.restore_task(done["saved_state"])
    assert gone["success"] is False
    assert str(file) in gone["error"]


def test_an_agent_with_a_cancel_of_its_own(section: Any, scheduler: RayScheduler) -> None:
    import ray

    here = section(GUIDE, scheduler=scheduler, ray=ray)
    here.run("29_own_cancel.py")
    done = preempted(scheduler, "pool", "job", here["MyAgent"])
    assert (done["success"], done["cancel_success"]) == (True, True)


def test_a_long_task_is_stopped_at_its_next_step(section: Any, scheduler: RayScheduler) -> None:
    import ray

    scheduler.create_pool("pool", resources={"cpu": 1})
    agent = scheduler.create_agent(name="a", pool="pool", actor_class=AgentActor, resources={"cpu": 1})
    scheduler.register_running_task("job-1", "a", "pool", 1.0)
    here = section(GUIDE, scheduler=scheduler, ray=ray, agent=agent)
    done: list[dict[str, Any]] = []
    cancelling = threading.Timer(0.5, lambda: done.append(scheduler.execute_preemption("job-1", "a")))
    cancelling.start()
    started = time.monotonic()
    here.run("30_simulated_duration.py")
    assert time.monotonic() - started < 10.0  # instead of 30
    cancelling.join()
    assert done[0]["cancel_success"] is True
