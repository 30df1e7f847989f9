import logging
logging.basicConfig(level=logging.DEBUG)
