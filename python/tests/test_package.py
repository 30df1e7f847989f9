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
