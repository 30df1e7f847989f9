"""Agents that behave and misbehave in known ways, for tests of the bridge and of what is built on it."""
