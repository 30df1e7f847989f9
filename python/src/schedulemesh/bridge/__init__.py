"""The sidecar: a Ray driver that does for the server what only Python can.

Run it with ``python -m schedulemesh.bridge``. It starts and stops agents and reports what happens
to them; it decides nothing and never runs user code, which is loaded inside Ray workers only.
"""
