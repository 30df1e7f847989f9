"""An agent whose class is already a Ray actor class, as users often write them."""

from __future__ import annotations

import ray

from schedulemesh.testing.agents import Counter


@ray.remote(num_cpus=1)
class Decorated(Counter):
    """A :class:`~schedulemesh.testing.agents.Counter` under ``@ray.remote``."""
