"""Agents and schedulers, as user code names them."""
