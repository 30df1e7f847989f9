"""Examples: each file that ends in ``_demo.py``, and ``preemption_file_state.py``, can be run as it is."""
