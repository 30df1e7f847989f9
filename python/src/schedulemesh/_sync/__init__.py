# Generated from schedulemesh/_async by python/unasync.py; edit that.
"""The client and the schedulers, as plain calls."""
