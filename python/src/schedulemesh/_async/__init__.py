"""The client and the schedulers, as coroutines. ``schedulemesh._sync`` is generated from here."""
