"""``python -m schedulemesh.cli``."""

import sys

from schedulemesh.cli import main

sys.exit(main())
