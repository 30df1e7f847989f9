"""The names under which jobs over many Ray clusters were submitted before; ``schedulemesh.jobs`` is what they
are."""
