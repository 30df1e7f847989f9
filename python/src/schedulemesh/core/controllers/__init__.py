"""The schedulers, as user code names them."""
