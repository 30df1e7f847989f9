"""What runs inside actors, as user code names it."""
