"""Examples. With a server up (``make run``), each file that ends in ``_demo.py`` can be run as it is."""
