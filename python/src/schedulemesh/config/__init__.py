"""Settings, as user code names them."""
