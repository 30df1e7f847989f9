"""ScheduleMesh: priority scheduling and preemption for Ray.

Importing this package imports nothing else: Ray is loaded by the modules that need it.
"""

__version__ = "0.1.0"
