"""The package as a whole."""

import subprocess
import sys


def test_importing_the_package_and_the_base_class_loads_no_ray() -> None:
    code = (
        "import sys, schedulemesh, schedulemesh.core.agent_actor, schedulemesh.core.reporting,"
        " schedulemesh.testing.agents; assert not [m for m in sys.modules if m.partition('.')[0] == 'ray']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_travels_to_the_worker_needs_the_standard_library_only() -> None:
    code = (
        "import sys, schedulemesh.bridge.worker;"
        "ours = {m for m in sys.modules if m.startswith('schedulemesh')};"
        "here = {'schedulemesh.bridge.' + name for name in ('pickled', 'worker')};"
        "assert ours == {'schedulemesh', 'schedulemesh.bridge'} | here, ours;"
        "assert not {'ray', 'aiohttp', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_paths() -> None:
    from schedulemesh.config.policy import PreemptionAggressiveness
    from schedulemesh.core import RayScheduler
    from schedulemesh.core.actors.control.preemption_controller import PreemptionPolicy, TaskState
    from schedulemesh.core.agent_actor import AgentActor
    from schedulemesh.core.agents import MetricsReportingAgent
    from schedulemesh.core.controllers import ray_scheduler
    from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

    assert ray_scheduler.RayScheduler is RayScheduler
    assert issubclass(MetricsReportingAgent, AgentActor)
    for found in (PreemptionAggressiveness, PreemptionPolicy, TaskState, SimpleScheduler, SimpleTaskSpec):
        assert isinstance(found, type)
        assert found.__doc__


def test_importing_the_schedulers_is_quick() -> None:
    """Less than 100 ms with Ray imported already: the best of several runs, for those under load."""
    code = (
        "import sys, time, ray; began = time.perf_counter();"
        "import schedulemesh.simple; print(time.perf_counter() - began)"
    )
    for _ in range(5):
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        if float(out) < 0.1:
            return
    raise AssertionError(f"it took {out.strip()} s")
