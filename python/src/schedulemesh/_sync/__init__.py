# Generated from schedulemesh/_async by scripts/unasync; edit that.
"""The client and the schedulers, as plain calls."""
